"""The admin port: what the processor says of itself over HTTP, to operators and Prometheus, and the
few things that they may have it do. Holds no policy, and answers nobody who came for a model.

What is sent here may hold prompts: it must never get into a log or an error.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias, TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel, ValidationError

from extproc.cache import StoreUnavailable
from extproc.caching import orders
from extproc.caching.explain import Unexplained, explain
from extproc.caching.report import Purge, Refusal, Trust, Why
from extproc.caching.stats import stats
from extproc.gateway import Gateway

_log = logging.getLogger(__name__)

_MOST_BYTES = 1024 * 1024
_TIME_LIMIT_S = 4.0

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.Response]]
_Sent = TypeVar("_Sent", bound=BaseModel)


class CannotListen(Exception):
    """An address is taken or unusable; the message says which and what to do."""


async def start(address: str, gateway: Gateway, is_serving: Callable[[], bool]) -> web.AppRunner:
    """Listen on `address`, host:port; CannotListen. `is_serving`: exchanges are taken."""
    runner = web.AppRunner(application(gateway, is_serving), access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    try:
        await web.TCPSite(runner, host, int(port)).start()
    except OSError as error:
        await runner.cleanup()
        raise CannotListen(
            f"forebay.admin {address}: {error.strerror}; stop what uses it or choose another"
        ) from error
    return runner


def application(gateway: Gateway, is_serving: Callable[[], bool]) -> web.Application:
    """/metrics, /healthz (the process lives), /readyz (it takes exchanges), /status (the pools),
    /costs, /cache and what may be done there: see extproc.caching.report."""

    async def metrics(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        # To HEAD aiohttp would write them too, where the next answer is expected.
        pieces = gateway.metrics.pieces() if request.method == "GET" else ()
        with suppress(ConnectionError):  # who scraped has left
            for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(0)  # requests go between
            await response.write_eof()
        return response

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        down = sorted(gateway.down)
        if not is_serving():
            return web.Response(status=503, text="not serving\n")
        if len(down) == len(gateway.policy.config.pools):
            return web.Response(status=503, text=f"no pool is up: {', '.join(down)}\n")
        return web.Response(text="ok\n" if not down else f"ok, but down: {', '.join(down)}\n")

    async def status(_: web.Request) -> web.Response:
        ready = is_serving() and len(gateway.down) < len(gateway.policy.config.pools)
        return _json({"ready": ready, **gateway.status()})

    async def costs(_: web.Request) -> web.Response:
        return _json(replace(gateway.ledger.report(), budgets=gateway.budgets()))

    async def cache(_: web.Request) -> web.Response:
        return _json(await stats(gateway))

    async def purge(request: web.Request) -> web.Response:
        order, _ = await _sent(request, Purge)
        return _json(await orders.purge(gateway, order))

    async def trust(request: web.Request) -> web.Response:
        order, _ = await _sent(request, Trust)
        return _json(orders.trust(gateway, order))

    async def why(request: web.Request) -> web.Response:
        return _json(await explain(gateway, *await _sent(request, Why)))

    app = web.Application(client_max_size=_MOST_BYTES)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/status", status)
    app.router.add_get("/costs", costs)
    app.router.add_get("/cache", _refusing(cache))
    app.router.add_post("/cache/purge", _refusing(purge))
    app.router.add_post("/cache/trust", _refusing(trust))
    app.router.add_post("/cache/why", _refusing(why))
    return app


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _refusing(handler: _Handler) -> _Handler:
    """Bounded in time; whatever goes wrong is a sentence."""

    async def refusing(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(_TIME_LIMIT_S):
                return await handler(request)
        except _Refused as refused:
            status, why = refused.status, str(refused)
        except Unexplained as error:
            status, why = 400, str(error)
        except orders.NotOn as error:
            status, why = 409, str(error)
        except StoreUnavailable as error:
            status, why = 503, str(error)
        except TimeoutError:
            status, why = 503, f"It took longer than {_TIME_LIMIT_S:g} s; try again."
        except Exception as error:  # its message might hold a piece of what was sent
            _log.error("%s failed: %s", request.path, type(error).__name__)
            status, why = 500, f"This failed: {type(error).__name__}. It is a bug of Forebay's."
        return _json(Refusal(why), status)

    return refusing


async def _sent(request: web.Request, shape: type[_Sent]) -> tuple[_Sent, bytes]:
    """What was sent, read and as it came. A web page that an operator looks at cannot send it: a
    browser names the page's origin, and asks us first whether it may send JSON, which we deny."""
    if "Origin" in request.headers:
        raise _Refused(403, "This is not for web pages: send it without an Origin header.")
    if request.content_type != "application/json":
        raise _Refused(415, "Send JSON, with the header content-type: application/json.")
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _Refused(413, f"Send {_MOST_BYTES // 1024:,} KiB at most.") from None
    try:
        return shape.model_validate_json(body), body
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"] if part in shape.model_fields)
        message = first["msg"] if where else f"Send {', '.join(shape.model_fields)} as JSON"
        raise _Refused(400, f"{where}: {message}" if where else f"{message}.") from None
