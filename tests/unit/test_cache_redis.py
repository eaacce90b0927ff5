"""Redis as it fails: a request never sees more of it than a miss, within the time limit."""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from extproc.cache import Secret, StoreUnavailable
from extproc.cache.codec import decode, encode
from extproc.cache.partitions import Item, MemoryPartitions, PartitionKey
from extproc.cache.redis_partitions import RedisPartitions
from extproc.cache.redis_store import RedisStore, answer_name, epoch_names
from extproc.redis_link import Link, Settings
from extproc.up import free_port
from tests.redis_server import MISSING, RedisServer, binary, redis_server
from tests.unit.test_cache_stores import ACME, ANN, KEY, SECRET, answer, got, put

LIMIT_S = 0.02
# What a busy machine may add to a time limit before a test calls it broken.
SLACK_S = 0.25

pytestmark = pytest.mark.skipif(binary() is None, reason=MISSING)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    yield from redis_server(tmp_path)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from redis_server(tmp_path_factory.mktemp("redis"))


@pytest.fixture
async def calm(shared_server: RedisServer) -> RedisServer:
    """Empty, and to be left running."""
    link = Link(Settings(shared_server.url))
    await link.insist("FLUSHALL")
    await link.close()
    return shared_server


@asynccontextmanager
async def opened(url: str, secret: Secret = SECRET, **more: Any) -> AsyncIterator[RedisStore]:
    store = RedisStore(Link(Settings(url, **{"time_limit_s": LIMIT_S, **more})), secret)
    try:
        yield store
    finally:
        await store.close()


async def warm(store: RedisStore) -> None:
    """Stored, and in Redis: a slow machine may need several tries within the limit."""
    for _ in range(50):
        await put(store)
        await asyncio.sleep(0.02)
        if await got(store):
            return
    raise AssertionError("nothing could be stored")


async def timed(store: RedisStore) -> tuple[str | None, float]:
    began = time.perf_counter()
    found = await got(store)
    return found, time.perf_counter() - began


async def until(condition: Callable[[], bool], within_s: float = 5) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - of a state nobody announces
            await asyncio.sleep(0.01)


async def again(store: RedisStore) -> None:
    await until(lambda: store.stats().state == "up")
    await warm(store)


async def test_one_that_was_never_there_is_a_miss_and_soon_not_even_asked() -> None:
    async with opened(f"redis://127.0.0.1:{free_port()}") as store:
        for _ in range(5):
            found, took_s = await timed(store)
            assert found is None
            assert took_s < LIMIT_S + SLACK_S
        stats = store.stats()
        assert stats.state == "away"
        assert sum(stats.failed.values()) == 5
        for _ in range(100):
            assert not await put(store)
        assert store.stats().failed["circuit"] == 100


async def test_it_is_found_when_it_comes_up_later(tmp_path: Path) -> None:
    server = RedisServer(cwd=tmp_path)
    async with opened(server.url) as store:
        while store.stats().state == "up":
            await got(store)
        server.start()
        try:
            await again(store)
        finally:
            server.kill()


async def test_killed_and_restarted_under_load(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await warm(store)
        slowest_s, ended = 0.0, asyncio.Event()

        async def load() -> None:
            nonlocal slowest_s
            while not ended.is_set():
                _, took_s = await timed(store)
                slowest_s = max(slowest_s, took_s)
                await put(store)
                await asyncio.sleep(0.001)

        clients = [asyncio.create_task(load()) for _ in range(4)]
        await asyncio.sleep(0.1)
        server.kill()
        await until(lambda: store.stats().state == "away")
        server.start()
        await until(lambda: store.stats().state == "up")
        await asyncio.sleep(0.1)
        ended.set()
        await asyncio.gather(*clients)
        assert await got(store) == "yes"
        assert slowest_s < LIMIT_S + SLACK_S


async def test_stalled_it_costs_a_few_time_limits_and_then_nothing(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await warm(store)
        server.stall()
        waits_s = [(await timed(store))[1] for _ in range(5)]
        assert max(waits_s) < LIMIT_S + SLACK_S
        assert min(waits_s) > LIMIT_S * 0.9
        assert store.stats().state == "away"
        began = time.perf_counter()
        for _ in range(1000):
            assert await got(store) is None
        assert time.perf_counter() - began < SLACK_S
        server.go_on()
        await again(store)


async def test_flushed_it_is_empty_and_goes_on(calm: RedisServer) -> None:
    async with opened(calm.url) as store:
        await warm(store)
        await store._link.insist("FLUSHALL")
        assert await got(store) is None
        await warm(store)


async def test_a_wrong_password_is_a_miss_and_stands_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = RedisServer("--requirepass", "right-password", cwd=tmp_path)
    server.start()
    try:
        async with opened(server.url, password="wrong-password", time_limit_s=1) as store:
            for _ in range(5):
                assert not await put(store)
            assert store.stats().failed == {"refused": 5}
            assert store.stats().state == "away"
            with pytest.raises(StoreUnavailable) as refused:
                await store.purge(ACME)
            told = caplog.text + str(refused.value) + repr(store._link.settings)
            assert "Redis is away (AuthenticationError)" in told
            assert "password" not in told.replace("password_file", "")
        async with opened(server.url, password="right-password") as store:
            await warm(store)
    finally:
        server.kill()


async def test_a_purge_is_seen_by_all_processors_at_once(calm: RedisServer) -> None:
    async with opened(calm.url, time_limit_s=1) as one, opened(calm.url, time_limit_s=1) as two:
        await warm(one)
        await put(two, ANN)
        assert await got(two) == await got(one, ANN) == "yes"
        await two.purge(ACME)
        assert [await got(one), await got(one, ANN), await got(two)] == [None] * 3


async def test_a_purge_that_did_not_reach_redis_says_so(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await warm(store)
        server.kill()
        with pytest.raises(StoreUnavailable, match="may still be given"):
            await store.purge(ACME)


async def test_a_lost_epoch_loses_its_answers_and_revives_none(calm: RedisServer) -> None:
    async with opened(calm.url, time_limit_s=1) as store:
        await warm(store)
        link, (epoch,) = store._link, epoch_names(SECRET, ACME)
        await store.purge(ACME)
        await link.insist("DEL", epoch)  # as an eviction would
        assert await got(store) is None
        await warm(store)
        await link.insist("SET", epoch, "of another length")
        assert not await put(store)
        assert await got(store) is None


async def test_processors_with_other_secrets_share_nothing(calm: RedisServer) -> None:
    other = Secret(b"another secret..")
    async with (
        opened(calm.url, time_limit_s=1) as one,
        opened(calm.url, other, time_limit_s=1) as two,
    ):
        await warm(one)
        assert await got(two) is None


async def test_names_and_epochs_reveal_nothing_and_all_have_an_end(calm: RedisServer) -> None:
    async with opened(calm.url, time_limit_s=1) as store:
        await warm(store)
        await put(store, ANN, text="of ann")
        await asyncio.sleep(0.05)
        for name in await store._link.ask("KEYS", "*"):
            assert b"acme" not in name
            assert b"ann" not in name
            assert name.startswith(b"forebay:{")
            assert await store._link.ask("PTTL", name) > 0


async def test_reading_never_touches_the_end_of_an_entry(calm: RedisServer) -> None:
    async with opened(calm.url, time_limit_s=1) as store:
        await put(store, ttl_s=30)
        await asyncio.sleep(0.05)
        name = answer_name(SECRET, ACME, KEY)
        before = await store._link.ask("PEXPIRETIME", name)
        for _ in range(5):
            assert await got(store)
        assert await store._link.ask("PEXPIRETIME", name) == before


NAME, EPOCH = b"name", b"epoch..."
VALUE = encode(SECRET, NAME, EPOCH, answer(), 1000.5, 60)


def test_an_answer_is_read_as_it_was_written() -> None:
    found = decode(SECRET, NAME, EPOCH, VALUE)
    assert found == (answer(), 1000.5, 60)


def test_a_value_that_is_changed_anywhere_is_no_answer() -> None:
    for place in range(len(VALUE)):
        for flipped in (1, 0x80):
            value = bytearray(VALUE)
            value[place] ^= flipped
            assert decode(SECRET, NAME, EPOCH, bytes(value)) is None
        assert decode(SECRET, NAME, EPOCH, VALUE[:place]) is None
    assert decode(SECRET, NAME, EPOCH, VALUE + b"x") is None
    assert decode(SECRET, b"other", EPOCH, VALUE) is None
    assert decode(SECRET, NAME, b"another.", VALUE) is None
    assert decode(Secret(b"x" * 16), NAME, EPOCH, VALUE) is None


@pytest.mark.parametrize("kind", ["garbage", "empty", "old", "anothers", "list"])
async def test_what_is_no_answer_is_a_miss_and_goes(calm: RedisServer, kind: str) -> None:
    async with opened(calm.url, time_limit_s=1) as store:
        await warm(store)
        name, link = answer_name(SECRET, ACME, KEY), store._link
        good = await link.ask("GET", name)
        other = b"other".ljust(32)
        await put(store, key=other)
        await asyncio.sleep(0.05)
        await link.insist("DEL", name)
        if kind == "list":
            await link.insist("RPUSH", name, "x")
        elif kind == "anothers":
            await link.insist("COPY", answer_name(SECRET, ACME, other), name)
        else:
            old = b"\0" + good[1:]
            await link.insist("SET", name, {"garbage": b"\xff{}", "empty": b"", "old": old}[kind])
        assert await got(store) is None
        await asyncio.sleep(0.05)
        if kind != "list":  # which looks like nothing, and is overwritten
            assert not await link.ask("EXISTS", name)
        await put(store)
        await asyncio.sleep(0.05)
        assert await link.ask("GET", name)
        assert await got(store) == "yes"


async def test_no_reply_reaches_another_look_up_whoever_leaves(calm: RedisServer) -> None:
    async with opened(calm.url, time_limit_s=1, connections=4) as store:
        keys = [bytes([n]) * 32 for n in range(16)]
        for number, key in enumerate(keys):
            assert await put(store, key=key, text=str(number))
        await asyncio.sleep(0.1)
        for turn in range(30):
            asking = [asyncio.create_task(got(store, key=key)) for key in keys]
            await asyncio.sleep(0)
            for number in range(turn % 3, 16, 3):
                asking[number].cancel()
            found = await asyncio.gather(*asking, return_exceptions=True)
            for number, text in enumerate(found):
                assert isinstance(text, asyncio.CancelledError) or text == str(number)


async def test_writes_wait_for_nobody_and_too_many_are_dropped(server: RedisServer) -> None:
    async with opened(server.url, time_limit_s=1) as store:
        await warm(store)
        epoch = (await store.get(ACME, KEY)).epoch
        server.stall()
        began = time.perf_counter()
        taken = [
            store.put(ACME, n.to_bytes(32, "big"), epoch, answer("x" * 1000), 60, 0)
            for n in range(2000)
        ]
        assert time.perf_counter() - began < SLACK_S * 2
        assert 0 < sum(taken) <= 512
        assert store.stats().failed["dropped"] == 2000 - sum(taken)
        big = store.put(ACME, KEY, epoch, answer("x" * 17 * 2**20), 60, 0)
        assert not big
        began = time.perf_counter()
    assert time.perf_counter() - began < 1 + SLACK_S  # closed, though it is stalled
    assert len(asyncio.all_tasks()) == 1


async def test_too_many_at_once_are_a_miss_at_once(server: RedisServer) -> None:
    async with opened(server.url, connections=1, time_limit_s=0.1) as store:
        await warm(store)
        server.stall()
        found = await asyncio.gather(*(timed(store) for _ in range(50)))
        assert max(took_s for _, took_s in found) < 0.1 + SLACK_S
        assert store.stats().failed["busy"] == 50 - 8


async def test_keys_that_are_read_together_lie_together_in_a_cluster(tmp_path: Path) -> None:
    # By itself it takes the port 10,000 above its own, which may be taken.
    bus = ("--cluster-port", str(free_port()))
    server = RedisServer("--cluster-enabled", "yes", *bus, cwd=tmp_path)
    server.start()
    try:
        link = Link(Settings(server.url, time_limit_s=2))
        await link.insist("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while b"state:ok" not in await link.ask("CLUSTER", "INFO"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await link.close()
        async with opened(server.url, cluster=True, time_limit_s=2) as store:
            for scope in (ACME, ANN):
                await put(store, scope)
                await asyncio.sleep(0.1)
                assert await got(store, scope) == "yes"
                await store.purge(scope)
                assert await got(store, scope) is None
            assert store.stats().failed == {}
    finally:
        server.kill()


@asynccontextmanager
async def tls_before(server: RedisServer, context: ssl.SSLContext) -> AsyncIterator[str]:
    """TLS towards us, plain towards Redis: not every build of it can TLS itself."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with proxy:
        yield f"rediss://localhost:{proxy.sockets[0].getsockname()[1]}"


async def test_tls_believes_only_its_authority_and_shows_a_certificate(
    calm: RedisServer, tmp_path: Path
) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    ours = authority.issue_cert("forebay")
    files = {name: tmp_path / name for name in ("ca", "stranger", "cert", "key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    stranger.cert_pem.write_to_path(str(files["stranger"]))
    ours.cert_chain_pems[0].write_to_path(str(files["cert"]))
    ours.private_key_pem.write_to_path(str(files["key"]))
    shown = {"cert_file": files["cert"], "key_file": files["key"]}
    async with tls_before(calm, context) as url:
        async with opened(url, ca_file=files["ca"], **shown) as store:
            await warm(store)
        for wrong in (
            {"ca_file": files["stranger"], **shown},
            {"ca_file": files["ca"]},  # no certificate of ours
            {"ca_file": files["ca"], **shown, "url": url.replace("localhost", "127.0.0.1")},
        ):
            async with opened(**{"url": url, **wrong}, time_limit_s=1) as store:
                assert not await put(store)
                assert store.stats().failed


@pytest.mark.parametrize(
    "reply",
    [
        b"+OK\r\n",
        b":5\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n:1\r\n:2\r\n",
        b"*2\r\n$1\r\nx\r\n*0\r\n",
        b"*2\r\n*2\r\n+a\r\n+b\r\n+c\r\n",
        b"-ERR what\r\n",
        b"-MOVED 1 127.0.0.1:1\r\n",
        b"-LOADING wait\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$5\r\nab",
        b"\xff\xfe\r\n",
        b"*1\r\n$99999999\r\n",
        b"",
    ],
)
async def test_whatever_is_there_instead_of_redis_is_a_miss(reply: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                writer.write(reply)
                if not reply:
                    return
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with opened(url) as store:
            questions = RedisPartitions(store._link, SECRET, MemoryPartitions(9, 9999, time.time))
            for _ in range(8):
                found = await store.get(ACME, KEY)
                assert found.entry is None
                store.put(ACME, KEY, found.epoch or b"12345678", answer(), 60, 0)
                at = PartitionKey(ACME, b"d", b"12345678")
                vector = np.ones(2, np.float32)
                questions.add(at, Item(KEY, "who?", time.time() + 60), vector)
                assert await questions.nearest(at, vector, -1) == []
                await asyncio.sleep(0)
