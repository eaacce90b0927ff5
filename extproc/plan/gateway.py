"""What a running gateway says of one pool, by its admin port."""

from dataclasses import dataclass

from pydantic import TypeAdapter

from extproc.admin_port import GatewayError, ask


@dataclass(frozen=True, slots=True)
class Pool:
    slots: int
    mean_service_s: float | None
    """None: no request of this pool has ended yet."""
    service_scv: float
    server_ttft_s: float
    """What the servers need of a TTFT themselves."""
    high_water: int
    low_water: int


@dataclass(frozen=True, slots=True)
class _Status:
    """The part of /status that is read; see Gateway.status."""

    pools: dict[str, Pool]


_STATUS = TypeAdapter(_Status)


def read_pool(admin_url: str, pool: str | None) -> Pool:
    """The pool of this name at `admin_url`/status; without a name, the only one there."""
    pools = ask(admin_url, "/status", "a status", _STATUS).pools
    if pool is None and len(pools) == 1:
        pool = next(iter(pools))
    if pool not in pools:
        what = "name one with --pool" if pool is None else f"there is no pool {pool}"
        url = f"{admin_url.rstrip('/')}/status"
        raise GatewayError(f"{url}: {what}; it has {', '.join(pools)}")
    return pools[pool]
