"""Questions found by similarity: exactly, within their partition, in memory and shared by Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.cache import Scope, Secret
from extproc.cache.codec import decode_item, encode_item
from extproc.cache.memory import MemoryStore
from extproc.cache.partitions import Item, MemoryPartitions, PartitionKey, Vector
from extproc.cache.redis_partitions import RedisPartitions
from extproc.cache.redis_store import RedisStore
from extproc.redis_link import Link, Settings
from tests.redis_server import RedisServer, redis_server
from tests.unit.test_cache_stores import ACME, ANN, BOB, PUBLIC, SECRET, answer

D = 8
RNG = np.random.default_rng(7)


def unit(*values: float) -> Vector:
    vector = np.zeros(D, np.float32)
    vector[: len(values)] = values
    return vector / np.float32(np.linalg.norm(vector))


def drawn() -> Vector:
    vector = RNG.standard_normal(D).astype(np.float32)
    return vector / np.float32(np.linalg.norm(vector))


def item(number: int, prompt: str = "who?", expires_at: float = 1e12) -> Item:
    return Item(number.to_bytes(32, "big"), prompt, expires_at)


def where(scope: Scope = ANN, digest: bytes = b"d", epoch: bytes = b"0") -> PartitionKey:
    return PartitionKey(scope, digest, epoch)


def numbers(found: list[Any]) -> list[int]:
    return [int.from_bytes(candidate.item.id, "big") for candidate in found]


async def test_the_most_similar_come_first_and_none_below_the_threshold() -> None:
    partitions = MemoryPartitions(100, 10**7, clock=lambda: 0.0)
    vectors = [drawn() for _ in range(60)]
    for number, vector in enumerate(vectors):
        partitions.add(where(), item(number), vector)
    for _ in range(20):
        asked = drawn()
        products = [float(vector @ asked) for vector in vectors]
        order = sorted(range(60), key=lambda n: -products[n])
        for at_least, most in ((0.3, 5), (-1, 60), (0.9, 8)):
            found = await partitions.nearest(where(), asked, at_least, most)
            assert numbers(found) == [n for n in order if products[n] >= at_least][:most]
            for similarity, one in found:
                number = int.from_bytes(one.id, "big")
                assert similarity == pytest.approx(products[number], abs=1e-6)


async def test_thresholds_of_0_and_1_and_an_empty_partition_do_as_expected() -> None:
    partitions = MemoryPartitions(10, 10**6, clock=lambda: 0.0)
    assert await partitions.nearest(where(), unit(1), 0) == []
    for number in range(5):
        vector = drawn()
        partitions.add(where(), item(number), vector)
        assert numbers(await partitions.nearest(where(), vector, 1)) == [number]
    partitions.add(where(), item(8), unit(1))
    partitions.add(where(), item(9), unit(-1))
    assert {8} == set(numbers(await partitions.nearest(where(), unit(1), 0))) - set(range(5))


async def test_another_scope_digest_epoch_or_embedder_finds_nothing() -> None:
    partitions = MemoryPartitions(10, 10**6, clock=lambda: 0.0)
    partitions.add(where(), item(1), unit(1))
    for scope in (ACME, BOB, PUBLIC, Scope("user", "other", "ann")):
        assert await partitions.nearest(where(scope), unit(1), -1) == []
    assert await partitions.nearest(where(digest=b"e"), unit(1), -1) == []
    assert await partitions.nearest(where(), np.ones(D + 1, np.float32), -1) == []
    assert numbers(await partitions.nearest(where(), unit(1), -1)) == [1]
    assert await partitions.nearest(where(epoch=b"1"), unit(1), -1) == []
    assert partitions.stats() == (0, 0, 0)  # what was purged is not even held


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "drop", "wait"]),
            st.integers(0, 3),
            st.integers(0, 12),
        ),
        max_size=80,
    ),
    max_entries=st.integers(1, 5),
    max_bytes=st.integers(3000, 12_000),
)
async def test_whatever_happens_what_is_found_is_there_and_the_bounds_hold(
    changes: list[tuple[str, int, int]], max_entries: int, max_bytes: int
) -> None:
    now = 0.0
    partitions = MemoryPartitions(max_entries, max_bytes, clock=lambda: now)
    known: dict[int, tuple[int, Vector, float]] = {}
    for what, room, number in changes:
        if what == "wait":
            now += 1
        elif what == "drop":
            partitions.drop(item(number).id)
            known.pop(number, None)
        else:
            known[number] = (room, drawn(), now + number / 3)
            partitions.add(
                where(digest=bytes([room])),
                item(number, "x" * number * 20, now + number / 3),
                known[number][1],
            )
        stats = partitions.stats()
        assert stats.used_bytes <= max_bytes
        assert (stats.entries == 0) == (stats.partitions == 0)
        for room in range(4):
            asked = drawn()
            found = await partitions.nearest(where(digest=bytes([room])), asked, -1, 99)
            assert len(found) <= max_entries
            for similarity, one in found:
                of, vector, expires_at = known[int.from_bytes(one.id, "big")]
                assert of == room
                assert expires_at > now
                assert similarity == pytest.approx(float(vector @ asked), abs=1e-6)


async def test_the_oldest_goes_when_a_partition_is_full() -> None:
    partitions = MemoryPartitions(3, 10**6, clock=lambda: 0.0)
    for number in range(5):
        partitions.add(where(), item(number), drawn())
    partitions.add(where(), item(3), drawn())  # again: it is the newest now
    partitions.add(where(), item(5), drawn())
    assert set(numbers(await partitions.nearest(where(), drawn(), -1))) == {3, 4, 5}


async def test_an_answer_that_leaves_memory_takes_its_question_with_it() -> None:
    now = 0.0
    partitions = MemoryPartitions(100, 10**6, clock=lambda: now)
    store = MemoryStore(3 * (answer().size + 500), lambda: now, dropped=partitions.drop)
    for number in range(5):
        one = item(number)
        assert store.put(ANN, one.id, b"0", answer(), 10, 0)
        partitions.add(where(), one, unit(1, number))
    assert set(numbers(await partitions.nearest(where(), unit(1), -1))) == {2, 3, 4}
    await store.purge(ACME)
    assert partitions.stats() == (0, 0, 0)


async def test_what_was_made_of_a_prompt_stays_with_it() -> None:
    partitions = MemoryPartitions(10, 10**6, clock=lambda: 0.0)
    partitions.add(where(), item(1, "a prompt"), unit(1))
    (found,) = await partitions.nearest(where(), unit(1), 0.9)
    found.item.parsed = "parsed"
    (again,) = await partitions.nearest(where(), unit(1), 0.9)
    assert (again.item.prompt, again.item.parsed) == ("a prompt", "parsed")


# --- shared by Redis ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from redis_server(tmp_path_factory.mktemp("redis"))


@asynccontextmanager
async def shared(
    server: RedisServer, max_entries: int = 1000, secret: Secret = SECRET, limit_s: float = 1
) -> AsyncIterator[RedisPartitions]:
    link = Link(Settings(server.url, time_limit_s=limit_s))
    yield RedisPartitions(link, secret, MemoryPartitions(max_entries, 10**7, clock=time.time))
    await link.close()


def fresh(number: int, prompt: str = "who?", for_s: float = 60) -> Item:
    return item(number, prompt, time.time() + for_s)


async def written() -> None:
    await asyncio.sleep(0.05)


async def test_processors_find_what_others_have_stored(server: RedisServer) -> None:
    key = where(epoch=b"shared..")
    async with (
        shared(server) as one,
        shared(server) as two,
        shared(server, 1000, Secret(b"x")) as no,
    ):
        assert await one.nearest(key, unit(1), 0.9) == []
        for number in range(3):
            one.add(key, fresh(number, f"prompt \udcff {number}"), unit(1, number / 100))
            await written()
            for processor in (one, two):
                (nearest, *rest) = await processor.nearest(key, unit(1, number / 100), 0.9)
                assert nearest.item.prompt == f"prompt \udcff {number}"
                assert nearest.similarity == pytest.approx(1, abs=1e-6)
                assert len(rest) == number
        assert await no.nearest(key, unit(1), -1) == []
        assert await two.nearest(where(BOB, epoch=b"shared.."), unit(1), -1) == []
        assert await two.nearest(where(epoch=b"another."), unit(1), -1) == []
        assert await two.nearest(where(epoch=b""), unit(1), -1) == []


async def test_only_what_is_newer_is_read(server: RedisServer) -> None:
    key = where(epoch=b"newer...")
    async with shared(server) as one, shared(server) as two:
        for number in range(300):
            one.add(key, fresh(number), drawn())
        async with shared(server) as other, asyncio.timeout(10):
            while len(await other.nearest(key, unit(1), -1, 999)) < 300:
                await written()
        counts = [len(await two.nearest(key, unit(1), -1, 999)) for _ in range(4)]
        assert counts == [128, 256, 300, 300]
        found = await two.nearest(key, unit(1), -1, 1)
        found[0].item.parsed = "kept"
        one.add(key, fresh(999), drawn())
        await written()
        assert (await two.nearest(key, unit(1), -1, 1))[0].item.parsed == "kept"
        two.drop(found[0].item.id)
        assert found[0].item.id not in {c.item.id for c in await two.nearest(key, unit(1), -1, 999)}


async def test_look_ups_at_once_read_what_is_new_once(server: RedisServer) -> None:
    key = where(epoch=b"once....")
    async with shared(server) as one:
        for number in range(20):
            one.add(key, fresh(number), drawn())
        await written()
        found = await asyncio.gather(*(one.nearest(key, unit(1), -1, 99) for _ in range(8)))
        assert [len(each) for each in found] == [20] * 8
        assert len({id(each[0].item) for each in found}) == 1


async def test_streams_are_bounded_and_have_an_end(server: RedisServer) -> None:
    key = where(epoch=b"bounded.")
    async with shared(server, max_entries=5) as one, shared(server, max_entries=5) as two:
        for number in range(9):
            one.add(key, fresh(number, for_s=30), drawn())
        one.add(key, fresh(10, for_s=0.01), drawn())
        await written()
        assert set(numbers(await two.nearest(key, unit(1), -1))) == {5, 6, 7, 8}
        name = one._name(key)
        assert await one._link.ask("XLEN", name) == 5
        assert 29_000 < await one._link.ask("PTTL", name) <= 30_000


async def test_a_purge_leaves_nothing_to_be_found(server: RedisServer) -> None:
    async with shared(server) as one, shared(server) as two:
        store = RedisStore(two._link, SECRET)
        epoch = (await store.get(ANN, b"k" * 32)).epoch
        one.add(where(epoch=epoch), fresh(1), unit(1))
        await written()
        assert await two.nearest(where(epoch=epoch), unit(1), 0.9)
        await store.purge(ACME)
        purged = (await store.get(ANN, b"k" * 32)).epoch
        assert await two.nearest(where(epoch=purged), unit(1), -1) == []
        assert two.stats().entries == 0


async def test_what_is_no_question_is_passed_over(server: RedisServer) -> None:
    key = where(epoch=b"garbage.")
    async with shared(server) as one:
        name, link = one._name(key), one._link
        good = encode_item(SECRET, name, fresh(1), unit(1))
        for value in (b"", b"x" * 300, good[:-1], good[:-5] + b"x" + good[-4:], b"\2" + good[1:]):
            await link.insist("XADD", name, "*", "q", value)
        await link.insist("XADD", name, "*", "other", "field")
        await link.insist("XADD", name, "*", "q", encode_item(SECRET, b"n", fresh(2), unit(1)))
        wide = np.ones(D + 1, np.float32)
        await link.insist("XADD", name, "*", "q", encode_item(SECRET, name, fresh(3), wide))
        await link.insist("XADD", name, "*", "q", good)
        assert numbers(await one.nearest(key, unit(1), -1)) == [1]
        await link.insist("SET", one._name(where(epoch=b"string..")), "not a stream")
        assert await one.nearest(where(epoch=b"string.."), unit(1), -1) == []


def test_a_question_is_read_as_it_was_written() -> None:
    for prompt in ("", "who?", "Wer? é \udcff \U0001f600"):
        found = decode_item(SECRET, b"n", encode_item(SECRET, b"n", item(7, prompt, 5.5), unit(3)))
        assert found
        assert (found[0].id, found[0].prompt, found[0].expires_at) == (item(7).id, prompt, 5.5)
        assert np.array_equal(found[1], unit(3))


async def test_a_stalled_redis_finds_nothing_in_time(server: RedisServer) -> None:
    key = where(epoch=b"stalled.")
    async with shared(server, limit_s=0.02) as one:
        one.add(key, fresh(1), unit(1))
        await written()
        server.stall()
        try:
            began = time.perf_counter()
            for _ in range(20):
                assert await one.nearest(key, unit(1), -1) == []
            assert time.perf_counter() - began < 5 * 0.02 + 0.5
        finally:
            server.go_on()
