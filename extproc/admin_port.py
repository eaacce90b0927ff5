"""Asks a running gateway's admin port. Only reads; asks once, bounded in time."""

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

_TIMEOUT_S = 5.0

Told = TypeVar("Told")


class GatewayError(Exception):
    """The gateway cannot be read; the message says what to do."""


def ask(admin_url: str, path: str, what: str, shape: TypeAdapter[Told]) -> Told:
    """What `admin_url``path` says, in `shape`; `what` it is called in an error."""
    url = f"{admin_url.rstrip('/')}{path}"
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
        return shape.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = f"{where}: {first['msg']}" if where else first["msg"]
        raise GatewayError(f"{url}: this is not {what} of Forebay ({problem})") from error
