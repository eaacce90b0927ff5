"""Small HTTP helpers that every route shares: JSON bodies, the key check, errors.

Must never hold state.
"""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from serving.protocol import ApiError


def json_response(body: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def not_found() -> web.Response:
    """What vLLM says of a path it does not have."""
    return json_response({"detail": "Not Found"}, status=404)


async def read_json(request: web.Request) -> object:
    """The body; raises ApiError 400 if it is not JSON."""
    try:
        return orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from None


def check_key(request: web.Request, key: str | None) -> None:
    """Raises ApiError 401 unless the request carries the key, if there is one."""
    given = request.headers.get("Authorization", "").encode(errors="replace")
    if key is not None and not hmac.compare_digest(given, f"Bearer {key}".encode()):
        refusal = ApiError(401, "Unauthorized")
        refusal.body = {"error": "Unauthorized"}  # vLLM's shape of just this one
        raise refusal


def plain_headers(request: web.Request) -> dict[str, str]:
    """Names in lower case, repeated ones joined by a comma, bytes that are no UTF-8 replaced."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        name = name.lower()
        value = value.encode(errors="surrogateescape").decode(errors="replace")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn an ApiError into its answer."""
    try:
        return await handler(request)
    except ApiError as error:
        return json_response(error.body, status=error.status)


async def mark_simulated(request: web.Request, response: web.StreamResponse) -> None:
    """Every response says that this is no real server."""
    response.headers["x-forebay-simulator"] = "1"
