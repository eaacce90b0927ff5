"""Asks a running gateway's admin port, or has it do something; once, bounded in time."""

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

_TIMEOUT_S = 5.0
_MOST_OF_A_REFUSAL = 64 * 1024

Told = TypeVar("Told")


class GatewayError(Exception):
    """The gateway cannot be read, or refuses; the message says what to do."""


def ask(admin_url: str, path: str, what: str, shape: TypeAdapter[Told]) -> Told:
    """What `admin_url``path` says, in `shape`; `what` it is called in an error."""
    url = f"{checked(admin_url)}{path}"
    return parsed(_answer(urllib.request.Request(url)), shape, url, f"{what} of Forebay")


def tell(admin_url: str, path: str, sent: bytes, what: str, shape: TypeAdapter[Told]) -> Told:
    """The same, for what has to be sent: JSON."""
    url = f"{checked(admin_url)}{path}"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=sent, headers=headers, method="POST")
    return parsed(_answer(request), shape, url, f"{what} of Forebay")


def _answer(request: urllib.request.Request) -> bytes:
    url = request.full_url
    # No proxy: an admin port is near, and its address is nobody else's business.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        if why := _refusal(error):
            raise GatewayError(f"{url}: {why}") from error
        raise no_answer(url, error.reason) from error
    except (OSError, ValueError, HTTPException) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise no_answer(url, why) from error


def _refusal(error: urllib.error.HTTPError) -> str:
    """The gateway's own sentence; empty if it was another who answered."""
    shape = TypeAdapter(dict[str, str])
    try:
        return shape.validate_json(error.read(_MOST_OF_A_REFUSAL)).get("error", "")
    except (ValidationError, OSError, HTTPException):
        return ""


def checked(admin_url: str) -> str:
    """The URL without a slash at its end; GatewayError if it is none."""
    url = admin_url.rstrip("/")
    if not f"{url}/".startswith(("http://", "https://")):
        raise GatewayError(f"{admin_url}: write http://host:port of the processor's admin port")
    return url


def no_answer(url: str, why: object) -> GatewayError:
    return GatewayError(
        f"{url}: no answer of a gateway ({why}). Is it running, and is this its admin port "
        "(forebay.admin, 9902 by default)?"
    )


def parsed(body: bytes | str, shape: TypeAdapter[Told], url: str, what: str) -> Told:
    """What `url` said; `what` it should have been."""
    try:
        return shape.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = f"{where}: {first['msg']}" if where else first["msg"]
        raise GatewayError(f"{url}: this is not {what} ({problem})") from error
