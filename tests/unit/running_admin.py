"""A gateway with its real admin port in a thread of its own, for tests of the commands that ask it.
There is no Envoy: a test puts answers into its caches as an exchange would."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson

from extproc import admin
from extproc.cache import Fill, Query
from extproc.cache.caches import Found
from extproc.config import Config
from extproc.gateway import Gateway
from extproc.openai import parse

T = TypeVar("T")

CHAT_PATH = "/v1/chat/completions"


def body(text: str = "hi", **more: Any) -> bytes:
    asked = {"model": "small-7b", "temperature": 0, **more}
    return orjson.dumps({**asked, "messages": [{"role": "user", "content": text}]})


def query_of(
    gateway: Gateway,
    sent: bytes,
    *,
    tenant: str = "acme",
    user: str = "",
    cache_control: str = "",
) -> Query:
    """What an exchange asks of the caches."""
    policy, request = gateway.policy, parse(CHAT_PATH, sent)
    known = policy.tenants.resolve(tenant)
    query = policy.query(
        request,
        sent,
        tenant=known,
        tenant_id=tenant,
        user_id=user,
        pool=policy.route(request, known, None, gateway.down, counts=False).wanted,
        cache_control=cache_control,
    )
    assert query
    return query


async def look_up(gateway: Gateway, sent: bytes, **who: str) -> Found:
    assert gateway.policy.caches
    return await gateway.policy.caches.look_up(query_of(gateway, sent, **who))


def answer(fill: Fill, text: str = "yes") -> None:
    """What the model says to it."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    fill.feed(orjson.dumps({"model": "m", "choices": [choice], "usage": {"prompt_tokens": 1}}))
    assert fill.end()


async def store(gateway: Gateway, sent: bytes, **who: str) -> None:
    fill = (await look_up(gateway, sent, **who)).fill
    assert fill
    answer(fill)


class Running:
    def __init__(self, gateway: Gateway, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.gateway = gateway
        self.url = url
        self._loop = loop

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """On the gateway's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def store(self, sent: bytes, **who: str) -> None:
        self.do(store(self.gateway, sent, **who))


@contextmanager
def running_admin(config: Config) -> Iterator[Running]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[Gateway, Any]:
        gateway = Gateway(config)
        return gateway, await admin.start("127.0.0.1:0", gateway, lambda: True)

    async def stop() -> None:
        await runner.cleanup()
        await gateway.close()

    gateway, runner = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    host, port = runner.addresses[0]
    try:
        yield Running(gateway, f"http://{host}:{port}", loop)
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
