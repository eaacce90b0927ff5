"""The admin port: what the processor says of itself over HTTP, to operators and Prometheus. Holds
no policy, and answers nobody who came for a model."""

from collections.abc import Callable

import orjson
from aiohttp import web
from prometheus_client import generate_latest

from extproc.gateway import Gateway


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
    /costs."""

    async def metrics(_: web.Request) -> web.Response:
        text = generate_latest(gateway.metrics.registry)
        return web.Response(body=text, content_type="text/plain", charset="utf-8")

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
        return web.json_response({"ready": ready, **gateway.status()})

    async def costs(_: web.Request) -> web.Response:
        body = orjson.dumps(gateway.ledger.report())
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/status", status)
    app.router.add_get("/costs", costs)
    return app
