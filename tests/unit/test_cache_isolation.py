"""Nothing crosses a scope: random tenants, users, requests and purges, against a plain model of who
may see what. FOREBAY_ISOLATION_CASES look-ups (make soak: 100,000), FOREBAY_ISOLATION_SEED."""

import os
import random
import time
from collections.abc import Iterator

import numpy as np
import orjson
import pytest

from extproc.cache import Caches, ExactCache, Query, Scope, Secret, Store, Times, scope_of
from extproc.cache.exact import Place
from extproc.cache.memory import MemoryStore
from extproc.cache.partitions import Item, MemoryPartitions, PartitionKey, Partitions
from extproc.cache.redis_partitions import RedisPartitions
from extproc.cache.redis_store import RedisStore
from extproc.openai import CHAT, parse
from extproc.redis_link import Link, Settings
from tests.redis_server import RedisServer, redis_server

CASES = int(os.environ.get("FOREBAY_ISOLATION_CASES", "600"))
SEED = int(os.environ.get("FOREBAY_ISOLATION_SEED", str(time.time_ns() % 10**6)))
SECRET = Secret(b"0123456789abcdef")
# Ids of these pieces are prefixes of each other, look like what stands between parts of a key, or
# like a scope that is written out.
PIECES = ("a", "b", ":", "1", "1:a", "\0", "{", "}", "%", "é", "e\u0301", "\xff", "user", "tenant")
PIECES += ("public", "tenant1:a0:", "a" * 300, " ", "\n", "/", "|", "epoch", "\U0001f600")


class World:
    """Who may see what: each answer names the scope and the request that it was made for."""

    def __init__(self, *processors: tuple[Store, Partitions]) -> None:
        """Of several processors each step takes one."""
        print(f"FOREBAY_ISOLATION_SEED={SEED}")
        self.rng = random.Random(SEED)
        self.processors = [
            (ExactCache(store, SECRET, Times(60, 60, 0.1)), questions)
            for store, questions in processors
        ]
        self.seen = {"hit": 0, "miss": 0, "bypass": 0, "purge": 0, "alike": 0}
        self.purged_at: dict[Scope, int] = {}
        self.turn = 0
        self.cast: list[tuple[str, str]] = []

    def id(self) -> str:
        return "".join(self.rng.choices(PIECES, k=self.rng.choice((0, 1, 1, 2, 2, 3))))

    def ids(self) -> tuple[str, str]:
        """One of a small cast, so that there are hits; a new cast now and then. In each some share
        a tenant, some a user, and some read alike when they are joined."""
        if self.turn % 16 == 1:
            tenant, user = self.id(), self.id()
            self.cast = [(tenant, user), (tenant, self.id()), (self.id(), user)]
            joined = tenant + user
            cut = self.rng.randint(0, len(joined))
            self.cast.append((joined[:cut], joined[cut:]))
            parts = f"{tenant}:{user}".split(":")
            cut = self.rng.randint(1, len(parts))
            self.cast.append((":".join(parts[:cut]), ":".join(parts[cut:])))
        return self.rng.choice(self.cast)

    async def step(self) -> None:
        self.turn += 1
        rng = self.rng
        cache, questions = rng.choice(self.processors)
        kind, tenant, user = rng.choice(("user", "user", "tenant", "public")), *self.ids()
        scope = scope_of(kind, tenant, user)
        if scope is not None and rng.random() < 0.06:
            await cache.store.purge(scope)
            self.purged_at[scope] = self.turn
            self.seen["purge"] += 1
            return
        asked = {
            "model": "auto",
            "temperature": rng.choice((0, 0.0, -0.0)),
            "messages": [{"role": "user", "content": rng.choice(("hi", "hi", "hi", "hi "))}],
        }
        body = orjson.dumps(asked)
        pool = rng.choice(("small", "small", "small", "large"))
        mine = orjson.dumps([kind, scope and scope[1:], pool, asked["messages"]]).decode()
        found = await Caches(cache).look_up(
            Query(
                scope=scope,
                alike_scope=None,
                wanted="deterministic",
                pool=pool,
                model="m",
                request=parse(CHAT, body),
                body=body,
                cache_control=rng.choice(("", "", "", "max-age=9", "no-cache")),
            )
        )
        self.seen[found.result] += 1
        if scope is None:
            assert found.result == "bypass"
            return
        if found.hit is not None:
            whose, turn = said(found.hit.answer.members)
            assert whose == mine
            assert all(turn > at for of, at in self.purged_at.items() if takes(of, scope))
        elif found.fill is not None:
            place = found.fill.place
            await self.look_for_alike(questions, place, mine)
            found.fill.feed(answer(mine, self.turn))
            found.fill.end()

    async def look_for_alike(self, questions: Partitions, place: Place, mine: str) -> None:
        """All questions are given one vector: only the partition keeps them apart."""
        vector = np.array([1, 0], np.float32)
        at = PartitionKey(place.scope, b"digest", place.epoch)
        for _, item in await questions.nearest(at, vector, 0.9, 99):
            assert orjson.loads(item.prompt)[:2] == orjson.loads(mine)[:2]
            self.seen["alike"] += 1
        questions.add(at, Item(place.key, mine, time.time() + 60), vector)


def takes(purged: Scope, scope: Scope) -> bool:
    """The rule of a purge, said once more: a tenant's takes its users' too."""
    if purged.kind == "tenant" and scope.kind == "user":
        return purged.tenant == scope.tenant
    return purged == scope


def answer(whose: str, turn: int) -> bytes:
    said = orjson.dumps([whose, turn]).decode()
    message = {"role": "assistant", "content": said}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return orjson.dumps({"model": "m", "choices": [choice], "usage": {"prompt_tokens": 1}})


def said(members: bytes) -> tuple[str, int]:
    whose, turn = orjson.loads(orjson.loads(members)["choices"][0]["message"]["content"])
    return whose, turn


async def test_nothing_crosses_a_scope_in_memory() -> None:
    questions = MemoryPartitions(200, 10**6, time.time)
    world = World((MemoryStore(200_000, time.time, dropped=questions.drop), questions))
    for _ in range(CASES):
        await world.step()
    print(world.seen)
    assert min(world.seen.values()) > CASES / 500  # or this proved nothing


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from redis_server(tmp_path_factory.mktemp("redis"))


async def test_nothing_crosses_a_scope_in_a_redis_of_two_processors(server: RedisServer) -> None:
    links = [Link(Settings(server.url, time_limit_s=1)) for _ in range(2)]
    stores = [RedisStore(link, SECRET) for link in links]
    copies = [MemoryPartitions(200, 10**6, time.time) for _ in links]
    questions = [
        RedisPartitions(link, SECRET, copy) for link, copy in zip(links, copies, strict=True)
    ]
    world = World(*zip(stores, questions, strict=True))
    for _ in range(CASES):
        await world.step()
    print(world.seen)
    for link in links:
        assert not link.failed
        await link.close()
    assert min(world.seen.values()) > CASES / 500
