"""What a running gateway says of one pool, by its admin port. Only reads; asks once, bounded."""

import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException

from pydantic import TypeAdapter, ValidationError

_TIMEOUT_S = 5.0


class GatewayError(Exception):
    """The gateway cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Pool:
    slots: int
    mean_service_s: float | None
    """None: no request of this pool has ended yet."""
    service_scv: float
    high_water: int
    low_water: int


@dataclass(frozen=True, slots=True)
class _Status:
    """The part of /status that is read; see Gateway.status."""

    pools: dict[str, Pool]


_STATUS = TypeAdapter(_Status)


def read_pool(admin_url: str, pool: str | None) -> Pool:
    """The pool of this name at `admin_url`/status; without a name, the only one there."""
    url = f"{admin_url.rstrip('/')}/status"
    if not url.startswith(("http://", "https://")):
        raise GatewayError(f"{admin_url}: write http://host:port of the processor's admin port")
    # No proxy: an admin port is near, and its address is nobody else's business.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            body = answer.read()
    except (OSError, ValueError, HTTPException) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise GatewayError(
            f"{url}: no answer of a gateway ({why}). Is it running, and is this its admin port "
            "(forebay.admin, 9902 by default)?"
        ) from error
    try:
        pools = _STATUS.validate_json(body).pools
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise GatewayError(f"{url}: this is not a status of Forebay ({what})") from error
    if pool is None and len(pools) == 1:
        pool = next(iter(pools))
    if pool not in pools:
        what = "name one with --pool" if pool is None else f"there is no pool {pool}"
        raise GatewayError(f"{url}: {what}; it has {', '.join(pools)}")
    return pools[pool]
