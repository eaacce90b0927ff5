"""Gateways that share a Redis, and Redis as it fails under them: no client ever sees it."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway
from tests.redis_server import MISSING, RedisServer, binary

pytestmark = pytest.mark.skipif(binary() is None, reason=MISSING)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    password = "a-password"
    one = RedisServer("--requirepass", password, cwd=tmp_path_factory.mktemp("redis"))
    one.start()
    yield one
    one.kill()


@pytest.fixture(scope="module")
def two(
    make_gateway: MakeGateway, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Gateway, Gateway]:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "secret").write_text("of all processors that share\n")
    (folder / "password").write_text("a-password\n")

    def with_redis(document: Any) -> None:
        cache = document["node"]["metadata"]["forebay"]["cache"]
        del cache["exact"]["max_bytes"]
        store = {"url": redis.url, "password_file": str(folder / "password")}
        cache.update(store={"redis": store}, secret_file=str(folder / "secret"))

    return make_gateway(edit=with_redis), make_gateway(edit=with_redis)


def cold(text: str) -> dict[str, Any]:
    return chat(text, temperature=0, max_tokens=4)


def hit(answer: Answer) -> bool:
    return answer.headers.get("cache-status", "").startswith("forebay; hit")


async def test_what_one_has_stored_the_other_gives(two: tuple[Gateway, Gateway]) -> None:
    one, other = two
    first = await one.ask(cold("shared"))
    assert first.headers["cache-status"] == "forebay; fwd=uri-miss"
    again = await one.ask(cold("shared"))
    there = await other.ask(cold("shared"))
    assert hit(again)
    assert hit(there)
    assert there.json["choices"] == first.json["choices"]
    assert there.json["usage"] == first.json["usage"]
    stream = await other.ask(cold("shared") | {"stream": True})
    assert hit(stream)
    assert other.received("small") == []
    nightly = {"authorization": "Bearer sk-demo-nightly"}
    assert not hit(await other.ask(cold("shared"), headers=nightly))


async def test_redis_may_die_stall_and_return_under_load(
    two: tuple[Gateway, Gateway], redis: RedisServer
) -> None:
    gateway, ended = two[0], asyncio.Event()
    await gateway.ask(cold("load"))
    statuses: set[int] = set()

    async def load(number: int) -> None:
        turn = 0
        while not ended.is_set():
            turn += 1
            answer = await gateway.ask(cold("load" if turn % 2 else f"{number} {turn}"))
            statuses.add(answer.status)

    async def until_hit() -> None:
        until = time.monotonic() + 10
        while not hit(await gateway.ask(cold("load"))):
            assert time.monotonic() < until, "no hits again"

    clients = [asyncio.create_task(load(number)) for number in range(3)]
    await until_hit()
    redis.kill()
    await asyncio.sleep(0.5)
    redis.start()
    await until_hit()
    redis.stall()
    await asyncio.sleep(0.5)
    redis.go_on()
    await until_hit()
    ended.set()
    await asyncio.gather(*clients)
    assert statuses == {200}
    assert gateway.metric("forebay_cache_store_up") == 1
