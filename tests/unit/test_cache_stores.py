"""What every store does, in memory and with a real Redis."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import orjson
import pytest

from extproc.cache import Scope, Secret, Store
from extproc.cache.memory import MemoryStore
from extproc.cache.redis_store import RedisStore
from extproc.openai import CHAT, Answer, UnreadAnswer
from extproc.redis_link import Link, Settings
from tests.redis_server import RedisServer, redis_server

SECRET = Secret(b"0123456789abcdef")
ACME = Scope("tenant", "acme", "")
ANN, BOB = Scope("user", "acme", "ann"), Scope("user", "acme", "bob")
OTHER = Scope("tenant", "other", "")
PUBLIC = Scope("public", "", "")
SCOPES = (ACME, ANN, BOB, OTHER, Scope("user", "other", "ann"), PUBLIC)
KEY = bytes(range(32))


def answer(text: str = "yes") -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return Answer(CHAT, orjson.dumps({"choices": [{**choice, "finish_reason": "stop"}]}), 3, 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from redis_server(tmp_path_factory.mktemp("redis"))


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore(10**6, asyncio.get_running_loop().time)
        return
    server: RedisServer = request.getfixturevalue("server")
    link = Link(Settings(server.url, time_limit_s=1))
    await link.insist("FLUSHALL")
    one = RedisStore(link, SECRET)
    yield one
    assert link.failed == {}
    await one.close()


async def put(
    store: Store,
    scope: Scope = ACME,
    key: bytes = KEY,
    text: str = "yes",
    ttl_s: float = 60,
    stale_s: float = 0,
) -> bool:
    epoch = (await store.get(scope, key)).epoch
    return store.put(scope, key, epoch, answer(text), ttl_s, stale_s)


async def got(store: Store, scope: Scope = ACME, key: bytes = KEY) -> str | None:
    entry = (await store.get(scope, key)).entry
    if entry is None:
        return None
    return orjson.loads(entry.answer.members)["choices"][0]["message"]["content"]


async def test_what_is_put_is_there_at_once_and_later(store: Store) -> None:
    assert await got(store) is None
    assert await put(store)
    assert await got(store) == "yes"
    await asyncio.sleep(0.05)  # it has reached Redis
    found = (await store.get(ACME, KEY)).entry
    assert found
    assert found.answer == answer()
    assert 0.04 < found.age_s < 1
    assert 59 < found.ttl_s < 60
    assert store.stats().stored == 1


async def test_the_newer_answer_counts(store: Store) -> None:
    for text in ("old", "new"):
        await put(store, text=text)
        assert await got(store) == text


async def test_nothing_is_given_to_another_scope_or_for_another_key(store: Store) -> None:
    for scope in SCOPES:
        await put(store, scope, key=SECRET.digest(b"test", scope.encode(), size=32), text="x")
    for scope in SCOPES:
        for of in SCOPES:
            found = await got(store, scope, SECRET.digest(b"test", of.encode(), size=32))
            assert (found == "x") == (scope == of)


async def test_a_hit_prolongs_nothing_a_stale_one_neither(store: Store) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await put(store, ttl_s=0.15, stale_s=0.15)
    seen: set[str] = set()
    while loop.time() < began + 0.5:
        entry = (await store.get(ACME, KEY)).entry
        age_s = loop.time() - began
        now = "gone" if entry is None else "fresh" if entry.ttl_s > 0 else "stale"
        seen.add(now)
        slack_s = 0.03  # between our clock and the store's
        if now == "fresh":
            assert age_s < 0.15 + slack_s
        elif now == "stale":
            assert 0.15 - slack_s < age_s < 0.3 + slack_s
        else:
            assert age_s > 0.3 - slack_s
        await asyncio.sleep(0.01)
    assert seen == {"fresh", "stale", "gone"}


async def test_what_may_not_be_given_again_is_not_kept(store: Store) -> None:
    good = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    for reason in ("stop", "tool_calls"):
        choices = [good | {"finish_reason": reason}]
        body = {"model": "m", "choices": choices, "usage": {"prompt_tokens": 2}}
        epoch = (await store.get(ACME, KEY)).epoch
        store.drop(ACME, KEY)
        store.put(ACME, KEY, epoch, UnreadAnswer(CHAT, 1, orjson.dumps(body)), 60, 0)
        await asyncio.sleep(0.03)
        assert (await got(store) == "a") == (reason == "stop")


async def test_what_is_dropped_is_gone(store: Store) -> None:
    await put(store)
    await put(store, BOB)
    store.drop(ACME, KEY)
    store.drop(ACME, b"never there".ljust(32))
    await asyncio.sleep(0.03)
    assert await got(store) is None


@pytest.mark.parametrize(
    ("purged", "left"),
    [
        (ACME, {OTHER, SCOPES[4], PUBLIC}),
        (ANN, set(SCOPES) - {ANN}),
        (Scope("user", "acme", "nobody"), set(SCOPES)),
        (PUBLIC, set(SCOPES) - {PUBLIC}),
    ],
)
async def test_a_purge_takes_its_scope_and_no_other(
    store: Store, purged: Scope, left: set[Scope]
) -> None:
    for scope in SCOPES:
        assert await put(store, scope, key=SECRET.digest(b"test", scope.encode(), size=32))
    await store.purge(purged)
    found = {s for s in SCOPES if await got(store, s, SECRET.digest(b"test", s.encode(), size=32))}
    assert found == left
    for scope in SCOPES:  # and the cache goes on
        key = SECRET.digest(b"test", scope.encode(), size=32)
        await put(store, scope, key)
        assert await got(store, scope, key)


async def test_what_was_asked_before_a_purge_is_not_stored_after_it(store: Store) -> None:
    await put(store, BOB)  # so that there is an epoch
    epoch = (await store.get(BOB, KEY)).epoch
    await store.purge(ACME)
    store.put(BOB, KEY, epoch, answer("old"), 60, 0)
    await asyncio.sleep(0.03)
    assert await got(store, BOB) is None


async def test_a_first_purge_finds_no_epoch_and_still_holds(store: Store) -> None:
    epoch = (await store.get(ANN, KEY)).epoch
    await store.purge(ANN)
    store.put(ANN, KEY, epoch, answer("old"), 60, 0)
    await asyncio.sleep(0.03)
    assert await got(store, ANN) is None


def test_what_a_reload_loads_on_a_thread_needs_no_loading_on_the_event_loop() -> None:
    """Half a second, else: in which no exchange goes on."""
    code = """if True:
        import sys, time
        from extproc import config, stores
        stores.warm_up(config.CacheConfig.model_validate({"exact": {}, "semantic": {}}))
        began, before = time.process_time(), set(sys.modules)
        from extproc.cache.semantic.cache import SemanticCache
        from extproc.cache.semantic.gate import parse
        parse("How do I boil an egg?")
        print(time.process_time() - began, len(set(sys.modules) - before))
    """
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    took_s, loaded = done.stdout.split()
    assert float(took_s) < 0.1  # the word lists take 0.2 s
    assert int(loaded) == 0
