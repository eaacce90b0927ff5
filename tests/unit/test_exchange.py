"""Exchanges without Envoy: whoever leaves, at whatever moment, leaves nothing behind."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc.aio
import orjson
import pytest

from extproc._generated.forebay_ext_proc_pb2 import (
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
)
from extproc.admission import Ask, Lease
from extproc.config import Config
from extproc.exchange import Exchange
from extproc.gateway import Gateway
from extproc.server import _GrpcStream  # pyright: ignore[reportPrivateUsage]

MOMENTS = 24
"""Turns of the event loop; an exchange that does not wait for others is admitted before."""
PATH = "/v1/chat/completions"
CHAT = {"model": "small-7b", "temperature": 0, "messages": [{"role": "user", "content": "Hi"}]}


class Context:
    """The gRPC stream of a client that may leave. Each message and each reply takes a turn of the
    event loop."""

    def __init__(self, request_class: str) -> None:
        values = {":path": PATH, ":method": "POST", "x-request-id": "r", "x-tenant-id": "acme"}
        values["x-request-class"] = request_class
        named = [HeaderValue(key=key, raw_value=text.encode()) for key, text in values.items()]
        headers = HttpHeaders(headers=HeaderMap(headers=named))
        body = orjson.dumps({**CHAT, "stream": request_class == "interactive"})
        self._messages = [
            ProcessingRequest(request_headers=headers),
            ProcessingRequest(request_body=HttpBody(body=body)),
        ]
        self.left = asyncio.Event()

    async def write(self, _: bytes) -> None:
        await asyncio.sleep(0)

    async def read(self) -> Any:
        await asyncio.sleep(0)
        if self._messages and not self.left.is_set():
            return self._messages.pop(0).SerializeToString()
        await self.left.wait()
        return grpc.aio.EOF


class One:
    """A running exchange, as the server runs it."""

    def __init__(self, gateway: Gateway, request_class: str = "interactive") -> None:
        self.context = Context(request_class)
        self.task = asyncio.create_task(self._run(gateway))

    async def _run(self, gateway: Gateway) -> None:
        context: Any = self.context
        stream = _GrpcStream(context)
        try:
            await Exchange(gateway, stream).run()
        finally:
            stream.close()

    async def leave(self, how: str) -> None:
        self.context.left.set()
        if how == "reset":
            self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


def gateway() -> Gateway:
    guarded = {"slots": 1, "partial_by": "guard"}
    pools = {name: {"model": f"{name}-7b", **guarded} for name in ("small", "large")}
    acme = {"concurrent_requests": 100, "tokens_per_minute": 10**6, "requests_per_minute": 10**4}
    return Gateway(
        Config.model_validate(
            {
                "pools": pools,
                "tenants": {"acme": acme},
                "cache": {"exact": {}},
                "admission": {"high_water": 8, "low_water": 4, "max_wait": "20ms"},
                "response": {"deadline": "60s", "on_expiry": "partial"},
            }
        )
    )


def left_behind(gateway: Gateway) -> dict[str, object]:
    """What is still held."""
    limiters = gateway.policy.limiters.values()
    caches, book = gateway.policy.caches, gateway.limits.here.look("acme")
    assert caches
    loop: Any = asyncio.get_running_loop()
    held = {
        "slots": sum(limiter.in_flight for limiter in limiters),
        "places": sum(limiter.waiting for limiter in limiters),
        "bytes": sum(limiter.waiting_bytes for limiter in limiters),
        "drift": sum(limiter.audit().drift for limiter in limiters),
        "followers": gateway.following_bytes,
        "flights": caches.under_way,
        "grants": len(book.leases) if book else 0,
        "tasks": len(asyncio.all_tasks()) - 1,
        "timers": sum(not timer.cancelled() for timer in loop._scheduled),
    }
    return {name: count for name, count in held.items() if count}


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["reset", "end"])
@pytest.mark.parametrize("request_class", ["interactive", "batch"])
@pytest.mark.parametrize("situation", ["free", "full", "followed", "following"])
async def test_whoever_leaves_leaves_nothing_behind(
    situation: str, request_class: str, how: str
) -> None:
    made = gateway()
    for moment in range(MOMENTS):
        holder: Lease | None = None
        others: list[One] = []
        if situation == "full":
            holder = made.policy.limiters["small"].enter(Ask(owner="holder"))
        if situation == "following":
            others.append(One(made, request_class))
            await turns(MOMENTS)
        one = One(made, request_class)
        if situation == "followed":
            others += [One(made, request_class) for _ in range(2)]
        await turns(moment)
        if holder is not None and moment % 2:
            holder.end()
            await turns(moment % 5)  # it may be granted the slot, or told so, or not yet
        await one.leave(how)
        for other in others:
            await turns(3)
            await other.leave("reset")
        if holder is not None:
            holder.end()
        await turns(3)
        assert left_behind(made) == {}, f"left at moment {moment}"
    decided = {decision for decision, _ in made.metrics.decisions}
    assert decided == {"client_gone", "admitted"}
    await made.close()
