"""What is known of the servers: up or down, and how busy, by asking real ones on free ports."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from extproc.backends import Backends, Load, replica
from extproc.backends.load import NoLoad, read_load
from extproc.backends.served import not_served
from extproc.config import Config, PoolConfig
from extproc.gateway import Gateway
from extproc.up import free_port
from serving.sim import SimSettings, running

LABELS = '{engine="0",model_name="small-7b"}'


def gauges(running: object, waiting: object, labels: str = LABELS) -> str:
    return (
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{labels} {running}\n"
        "# TYPE vllm:num_requests_waiting gauge\n"
        f"vllm:num_requests_waiting{labels} {waiting}\n"
        f'vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 99.0\n'
    )


def listing(*models: str) -> str:
    return json.dumps({"object": "list", "data": [{"id": model} for model in models]})


def other_lines(size_bytes: int) -> str:
    line = (
        'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="small-7b"} 1.0\n'
    )
    return line * (size_bytes // len(line))


# --- the text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [LABELS, "", "{}", '{model_name="a} 5"}', '{model_name="\\"{"}'])
@pytest.mark.parametrize("end", ["", " 1700000000000", "\r"])
def test_the_gauges_are_found_whatever_their_labels(labels: str, end: str) -> None:
    text = gauges(f"3.0{end}", f"7{end}", labels)
    for before, after in (("", ""), (other_lines(50_000), other_lines(50_000))):
        assert read_load((before + text + after).encode(), at=5.0) == Load(3, 7, 5.0)


def test_the_gauges_are_found_in_the_first_line_and_without_a_last_newline() -> None:
    text = b"vllm:num_requests_running 1e+01\nvllm:num_requests_waiting 2"
    assert read_load(text, 0.0) == Load(10, 2, 0.0)


def test_engines_and_models_are_summed() -> None:
    text = gauges("3.0", "1.0") + gauges("4.0", "0.0", '{engine="1",model_name="b"}')
    assert read_load(text.encode(), 0.0) == Load(7, 1, 0.0)


@pytest.mark.parametrize("value", ["-1.0", "NaN", "+Inf", "-Inf", "many", "0x10", "1e999"])
@pytest.mark.parametrize("gauge", ["running", "waiting"])
def test_what_is_no_number_of_requests_is_refused(gauge: str, value: str) -> None:
    text = gauges(**{"running": "1.0", "waiting": "1.0"} | {gauge: value})
    with pytest.raises(NoLoad, match=f"vllm:num_requests_{gauge} is not a number"):
        read_load(text.encode(), 0.0)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", "running"),
        ("<html>vllm:num_requests_running</html>", "running"),
        ("vllm:num_requests_running 1\n", "waiting"),
        ('vllm:num_requests_running 1\nvllm:num_requests_waiting_by_reason{reason="a"} 1\n', "w"),
        ("vllm:num_requests_waiting 1\nvllm:num_requests_running\n", "running"),
        ("vllm:num_requests_waiting 1\nx vllm:num_requests_running 1\n", "running"),
    ],
)
def test_a_text_without_both_gauges_is_refused(text: str, missing: str) -> None:
    with pytest.raises(NoLoad, match=f"no vllm:num_requests_{missing}"):
        read_load(text.encode(), 0.0)


@given(st.binary())
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    for whole in (text, gauges(1, 2).encode() + text, b"vllm:num_requests_running{" + text):
        with suppress(NoLoad):
            assert read_load(whole, 0.0).running >= 0


def test_a_text_of_100_kb_is_read_in_well_under_a_millisecond() -> None:
    text = (other_lines(50_000) + gauges(3, 7) + other_lines(50_000)).encode()
    took_s = []
    for _ in range(20):
        began = time.thread_time()
        read_load(text, 0.0)
        took_s.append(time.thread_time() - began)
    assert min(took_s) < 0.0005


def test_the_worst_text_of_the_largest_size_is_read_in_time() -> None:
    size = 2**20
    start = b"\nvllm:num_requests_running{"
    for text in (start + b"}" * size, start + b"} " * size, start * (size // len(start))):
        began = time.process_time()
        with pytest.raises(NoLoad):
            read_load(text[:size], 0.0)
        assert time.process_time() - began < 0.1


# --- servers ------------------------------------------------------------------------------------


class Fake:
    """A server whose answers a test may change at any time."""

    def __init__(self) -> None:
        self.health = 200
        self.health_takes_s: list[float] = []  # of the next answers; then 0
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.text = gauges("3.0", "7.0")
        self.metrics_status = 200
        self.metrics_take_s = 0.0
        self.models: str | bytes = listing("small-7b")
        self.models_status = 200
        self.models_take_s = 0.0
        self.models_asked = 0
        self.scrapes: list[float] = []
        self.at_once = self.most_at_once = 0
        self.accepted_encodings: set[str | None] = set()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: TestServer | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        self._server = TestServer(app, port=self.port)
        await self._server.start_server(shutdown_timeout=0.0)

    async def stop(self) -> None:
        if self._server:
            await self._server.close()

    async def _health(self, _: web.Request) -> web.Response:
        await asyncio.sleep(self.health_takes_s.pop(0) if self.health_takes_s else 0.0)
        await self.speaks.wait()
        return web.Response(status=self.health)

    async def _models(self, _: web.Request) -> web.Response:
        self.models_asked += 1
        await asyncio.sleep(self.models_take_s)
        return web.Response(status=self.models_status, body=self.models)

    async def _metrics(self, request: web.Request) -> web.Response:
        self.scrapes.append(time.monotonic())
        self.accepted_encodings.add(request.headers.get("Accept-Encoding"))
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await asyncio.sleep(self.metrics_take_s)
            await self.speaks.wait()
        finally:
            self.at_once -= 1
        return web.Response(status=self.metrics_status, text=self.text)


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    server = Fake()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def quick_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four a second."""
    monkeypatch.setattr(replica, "SCRAPE_EVERY_S", 0.25)
    monkeypatch.setattr(replica, "SCRAPE_LIMIT_S", 0.25)


def a_pool(*urls: str, **more: object) -> PoolConfig:
    return PoolConfig.model_validate(
        {"model": "small-7b", "slots": 4, "endpoints": list(urls)} | more
    )


def named(*pools: PoolConfig) -> dict[str, PoolConfig]:
    return {f"pool-{number}": pool for number, pool in enumerate(pools)}


@asynccontextmanager
async def watching(
    *pools: PoolConfig,
    on_change: Callable[[], None] = lambda: None,
    on_load: Callable[[str], None] = lambda url: None,
) -> AsyncIterator[Backends]:
    backends = Backends(on_change, on_load)
    await backends.watch(named(*pools))
    try:
        yield backends
    finally:
        await backends.close()


@asynccontextmanager
async def a_silent_port() -> AsyncIterator[str]:
    """The URL of a port that accepts connections and says nothing on them."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # to the end
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def a_port_that_says(words: bytes, port: int) -> AsyncIterator[asyncio.Server]:
    """Answers every request with these bytes and the end of the connection."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(words)
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", port) as server:
        yield server


async def until(condition: Callable[[], bool], limit_s: float = 4.0) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, "not within the limit"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def counts(load: Load) -> tuple[int, int]:
    return load.running, load.waiting


async def test_up_and_load_are_known_when_the_watch_begins(fake: Fake) -> None:
    pool, loads = a_pool(fake.url), []
    async with watching(pool, on_load=loads.append) as backends:
        assert backends.replicas_up(pool) == 1
        assert backends.is_up(pool)
        assert counts(backends.loads(pool)[fake.url]) == (3, 7)
        assert loads == [fake.url]


async def test_the_load_is_read_once_a_second_as_plain_text(fake: Fake) -> None:
    pool, loads = a_pool(fake.url), []
    async with watching(pool, on_load=loads.append) as backends:
        fake.text = gauges("5.0", "0.0")
        await until(lambda: len(loads) == 3)
        assert counts(backends.loads(pool)[fake.url]) == (5, 0)
    gaps = [after - before for before, after in zip(fake.scrapes, fake.scrapes[1:], strict=False)]
    assert all(0.95 < gap < 1.3 for gap in gaps), gaps
    assert fake.accepted_encodings == {"identity"}


async def test_a_real_simulator_says_how_busy_it_is() -> None:
    settings = SimSettings(port=0, max_num_seqs=1)
    body = {"model": settings.models[0], "prompt": "x", "max_tokens": 200}
    async with running(settings) as port, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{port}"
        asking = [
            asyncio.create_task(http.post(f"{url}/v1/completions", json=body)) for _ in range(3)
        ]
        await asyncio.sleep(0.3)
        pool = a_pool(url)
        async with watching(pool) as backends:
            assert counts(backends.loads(pool)[url]) == (1, 2)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_slow_scrape_keeps_the_last_value_and_its_age_grows(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    pool, loads = a_pool(fake.url), []
    async with watching(pool, on_load=loads.append) as backends:
        first = backends.loads(pool)
        fake.text, fake.metrics_take_s = gauges("0.0", "0.0"), 60.0
        early_s = backends.servers(pool).scrape_age_s
        await until(lambda: len(fake.scrapes) == 3)  # the second has been given up
        assert fake.most_at_once == 1
        assert backends.loads(pool) == first
        servers = backends.servers(pool)
        assert (servers.up, servers.running, servers.waiting) == (1, 3, 7)
        assert early_s is not None
        assert servers.scrape_age_s is not None
        assert servers.scrape_age_s > early_s + 2
        assert len(loads) == 1
        assert warnings(caplog) == []
    assert fake.scrapes[2] - fake.scrapes[1] == pytest.approx(2.0, abs=0.3)  # limit and pause


@pytest.mark.usefixtures("quick_scrapes")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"metrics_status": 404}, "status 404"),
        ({"text": "<html>"}, "there is no vllm:num_requests_running"),
        ({"text": gauges("NaN", "1")}, "num_requests_running is not a number"),
        ({"text": gauges("1", "-1")}, "num_requests_waiting is not a number"),
        ({"text": gauges("1", "1") + other_lines(2**20 + 1000)}, "more than 1048576 bytes"),
    ],
)
async def test_a_server_that_does_not_say_is_warned_of_once_until_it_does(
    fake: Fake, caplog: pytest.LogCaptureFixture, change: dict[str, object], why: str
) -> None:
    good = {name: getattr(fake, name) for name in change}
    vars(fake).update(change)
    pool = a_pool(fake.url)
    async with watching(pool) as backends:
        await until(lambda: len(fake.scrapes) == 3)
        assert backends.loads(pool) == {}
        assert backends.is_up(pool)
        servers = backends.servers(pool)
        assert (servers.running, servers.waiting, servers.scrape_age_s) == (None, None, None)
        assert [why in line and fake.url in line for line in warnings(caplog)] == [True]

        vars(fake).update(good)
        await until(lambda: backends.loads(pool) != {})
        vars(fake).update(change)
        await until(lambda: len(warnings(caplog)) == 2)
        assert counts(backends.loads(pool)[fake.url]) == (3, 7)


@pytest.mark.usefixtures("quick_scrapes")
async def test_a_server_that_never_answers_a_scrape_is_warned_of_once(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    fake.metrics_take_s = 60.0
    pool = a_pool(fake.url)
    async with watching(pool) as backends:
        await until(lambda: len(fake.scrapes) == 3)
        assert backends.is_up(pool)
        assert backends.loads(pool) == {}
        assert ["no answer within 0.25 s" in line for line in warnings(caplog)] == [True]


async def test_what_a_server_said_before_it_went_down_is_not_taken_after_it(fake: Fake) -> None:
    pool = a_pool(fake.url)
    async with watching(pool) as backends:
        fake.metrics_take_s = 0.8
        await until(lambda: fake.at_once == 1)
        fake.health = 503
        await until(lambda: backends.replicas_up(pool) == 0)
        assert fake.at_once == 1
        await until(lambda: fake.at_once == 0)
        await asyncio.sleep(0.1)
        assert backends.loads(pool) == {}


async def test_a_text_just_under_the_limit_is_read(fake: Fake) -> None:
    fake.text = other_lines(2**20 - 2000) + gauges("3.0", "7.0")
    pool = a_pool(fake.url)
    async with watching(pool) as backends:
        assert counts(backends.loads(pool)[fake.url]) == (3, 7)


async def test_a_dead_server_is_noticed_at_once_and_its_load_dropped(fake: Fake) -> None:
    pool, changes, loads = a_pool(fake.url), [], []
    async with watching(
        pool, on_change=lambda: changes.append(None), on_load=loads.append
    ) as backends:
        assert len(changes) == 1
        await fake.stop()
        assert await until(lambda: backends.replicas_up(pool) == 0) < 1.0
        assert len(changes) == 2
        assert not backends.is_up(pool)
        assert backends.loads(pool) == {}
        assert backends.servers(pool).running is None

        fake.text = gauges("1.0", "0.0")
        await fake.start()
        assert await until(lambda: backends.replicas_up(pool) == 1) < 1.0
        assert len(changes) == 3
        assert await until(lambda: backends.loads(pool) != {}) < 1.5
        assert counts(backends.loads(pool)[fake.url]) == (1, 0)
    assert loads == [fake.url] * len(loads)


async def test_a_server_that_answers_nothing_is_down_within_2_s(fake: Fake) -> None:
    pool = a_pool(fake.url)
    async with watching(pool) as backends:
        fake.speaks.clear()
        took_s = await until(lambda: backends.replicas_up(pool) == 0)
        assert 1.4 < took_s < 2.3
        await asyncio.sleep(1)
        assert backends.replicas_up(pool) == 0
        assert backends.loads(pool) == {}
        fake.speaks.set()
        assert await until(lambda: backends.replicas_up(pool) == 1) < 1.0


async def test_a_port_that_accepts_and_never_answers_is_down() -> None:
    async with a_silent_port() as url:
        pool, began = a_pool(url), time.monotonic()
        async with watching(pool) as backends:
            assert time.monotonic() - began < 2
            assert backends.replicas_up(pool) == 0
            assert not backends.is_up(pool)


async def test_slow_answers_do_not_drop_a_server_that_lives() -> None:
    """One answer that is late, one that never comes while the next ones do, and all of them."""
    async with AsyncExitStack() as stack:
        fakes = [Fake() for _ in range(3)]
        for fake in fakes:
            await fake.start()
            stack.push_async_callback(fake.stop)
        pool, changes = a_pool(*(fake.url for fake in fakes)), []
        backends = await stack.enter_async_context(
            watching(pool, on_change=lambda: changes.append(None))
        )
        for fake, slow_s in zip(fakes, ([1.3], [60.0], [1.2] * 40), strict=True):
            fake.health_takes_s = slow_s
        await asyncio.sleep(3)
        assert backends.replicas_up(pool) == 3
        assert len(changes) == 3  # at the beginning


async def test_an_unhealthy_server_is_down_although_it_says_its_load(fake: Fake) -> None:
    pool = a_pool(fake.url)
    async with watching(pool) as backends:
        fake.health = 503
        assert await until(lambda: backends.replicas_up(pool) == 0) < 1.0
        scrapes = len(fake.scrapes)
        await asyncio.sleep(1.2)
        assert backends.loads(pool) == {}
        assert len(fake.scrapes) == scrapes


GARBAGE = [
    b"\x00\xff" * 100,
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000,
    b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000,
    b"HTTP/1.1 302 Found\r\nlocation: http://[\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nlocation: /health\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 999999999999 ?\r\n\r\n",
    b"",
]


async def test_garbage_does_not_end_the_watch() -> None:
    """Whatever comes instead of an answer; and when the server speaks HTTP again, it is seen."""
    fakes = [Fake() for _ in GARBAGE]
    pool = a_pool(*(fake.url for fake in fakes))
    async with AsyncExitStack() as stack:
        ports = [
            await stack.enter_async_context(a_port_that_says(garbage, fake.port))
            for garbage, fake in zip(GARBAGE, fakes, strict=True)
        ]
        backends = await stack.enter_async_context(watching(pool))
        await asyncio.sleep(0.7)
        assert backends.loads(pool) == {}
        for port, fake in zip(ports, fakes, strict=True):
            port.close()
            await fake.start()
            stack.push_async_callback(fake.stop)
        await until(lambda: len(backends.loads(pool)) == len(GARBAGE))
        assert backends.replicas_up(pool) == len(GARBAGE)


async def test_replicas_are_counted_and_summed_one_by_one(fake: Fake) -> None:
    second, dead = Fake(), Fake()
    await second.start()
    second.text = gauges("1.0", "0.0")
    pool, second_alone = a_pool(fake.url, second.url, dead.url), a_pool(second.url)
    try:
        async with watching(pool, second_alone) as backends:
            assert backends.replicas_up(pool) == 2
            servers = backends.servers(pool)
            assert (servers.replicas, servers.up) == (3, 2)
            assert (servers.running, servers.waiting) == (4, 7)
            assert list(backends.loads(pool)) == [fake.url, second.url]
            assert backends.servers(second_alone).running == 1
            assert len(second.scrapes) == 1  # in two pools, read once
    finally:
        await second.stop()


async def test_the_age_is_that_of_the_oldest_load(fake: Fake) -> None:
    stale = Fake()
    await stale.start()
    pool = a_pool(fake.url, stale.url)
    try:
        async with watching(pool) as backends:
            stale.metrics_status = 404
            await asyncio.sleep(2.5)
            age_s = backends.servers(pool).scrape_age_s
            assert age_s is not None
            assert 2.4 < age_s < 3.0
    finally:
        await stale.stop()


async def test_a_pool_that_is_not_polled_is_all_up_and_says_nothing(fake: Fake) -> None:
    pool = a_pool("http://127.0.0.1:1", "http://127.0.0.1:2", server="other")
    nowhere = a_pool(server="other")
    async with watching(pool, nowhere, a_pool(fake.url)) as backends:
        assert backends.replicas_up(pool) == 2
        assert backends.loads(pool) == {}
        assert backends.replicas_up(nowhere) == 0
        assert backends.is_up(nowhere)


@pytest.mark.usefixtures("quick_scrapes")
async def test_a_replica_that_leaves_the_config_is_asked_no_more(fake: Fake) -> None:
    other = Fake()
    await other.start()
    pool = a_pool(fake.url)
    try:
        async with watching(pool) as backends:
            await backends.watch(named(a_pool(other.url)))
            assert backends.loads(pool) == {}
            scrapes = len(fake.scrapes)
            await until(lambda: len(other.scrapes) == 3)
            assert len(fake.scrapes) == scrapes
    finally:
        await other.stop()


async def test_many_silent_servers_do_not_delay_the_others() -> None:
    """80 of them, with three polls each under way: more than twice aiohttp's own limit. One that
    returns needs a connection too."""
    fake = Fake()
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(a_silent_port()) for _ in range(80)]
        pool, silent = a_pool(fake.url), a_pool(*urls)
        async with watching(pool, silent) as backends:
            assert backends.replicas_up(silent) == 0
            await asyncio.sleep(1.5)
            await fake.start()
            stack.push_async_callback(fake.stop)
            assert await until(lambda: backends.replicas_up(pool) == 1) < 0.75


# --- which models they serve --------------------------------------------------------------------


async def test_a_model_that_the_server_does_not_serve_is_told_once_with_what_it_serves(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    fake.models = listing("qwen", "qwen-lora")
    async with watching(a_pool(fake.url)):
        await until(lambda: warnings(caplog) != [])
        await asyncio.sleep(1.2)  # more polls
        (said,) = warnings(caplog)
    assert said.startswith(f"pool pool-0: its server {fake.url} does not serve 'small-7b', ")
    assert "it serves 'qwen', 'qwen-lora'. " in said
    assert "until pools.pool-0.model says" in said
    assert fake.models_asked == 1


async def test_a_model_among_those_it_serves_is_not_spoken_of(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    fake.models = listing("qwen", "small-7b")
    async with watching(a_pool(fake.url)):
        await until(lambda: fake.models_asked == 1)
        await asyncio.sleep(0.1)
    assert warnings(caplog) == []


async def test_a_server_that_comes_back_is_asked_again(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    pool = a_pool(fake.url)
    async with watching(pool) as backends:
        await until(lambda: fake.models_asked == 1)
        fake.health = 503
        await until(lambda: backends.replicas_up(pool) == 0)
        fake.models, fake.health = listing("qwen"), 200
        await until(lambda: any("does not serve" in line for line in warnings(caplog)))
    assert fake.models_asked == 2


async def test_pools_that_want_another_model_than_before_are_told_of_it(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a reload; and of two pools with one server only the one that is wrong."""
    pool = a_pool(fake.url)
    async with watching(pool, pool) as backends:
        await until(lambda: fake.models_asked == 1)
        await backends.watch(named(pool, pool))  # nothing new
        await asyncio.sleep(0.1)
        assert (fake.models_asked, warnings(caplog)) == (1, [])
        await backends.watch(named(pool, a_pool(fake.url, model="b")))
        await until(lambda: warnings(caplog) != [])
        (said,) = warnings(caplog)
        assert said.startswith("pool pool-1: ")
        assert "'b'" in said


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (listing("qwen"), 401),
        (listing("qwen"), 403),
        (listing("qwen"), 404),
        (listing("qwen"), 500),
        (listing(), 200),
        ("<html>", 200),
        (b"\x00\xff", 200),
        ("", 200),
        ("[]", 200),
        ('{"data": "qwen"}', 200),
        ('{"data": [{"id": 5}]}', 200),
        ('{"data": [{"id": []}]}', 200),
        ('{"data": ["qwen"]}', 200),
        ("[" * 100_000, 200),
        (listing("qwen") + " " * 2**20, 200),
    ],
)
async def test_a_server_that_does_not_say_what_it_serves_is_not_spoken_of(
    fake: Fake, caplog: pytest.LogCaptureFixture, answer: str | bytes, status: int
) -> None:
    fake.models, fake.models_status = answer, status
    pool = a_pool(fake.url)
    async with watching(pool) as backends:
        await until(lambda: fake.models_asked == 1)
        scrapes = len(fake.scrapes)
        await until(lambda: len(fake.scrapes) > scrapes)  # the watch goes on
        assert backends.is_up(pool)
    assert warnings(caplog) == []


async def test_a_list_of_models_that_never_comes_delays_nothing(
    fake: Fake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "POLL_LIMIT_S", 0.5)
    fake.models_take_s, fake.models = 60.0, listing("qwen")
    pool, began = a_pool(fake.url), time.monotonic()
    async with watching(pool) as backends:
        assert time.monotonic() - began < 0.4
        await until(lambda: len(fake.scrapes) == 3)
        assert backends.is_up(pool)
        # It was given up: what the pools want now is asked.
        fake.models_take_s = 0.0
        await backends.watch(named(a_pool(fake.url, model="b")))
        await until(lambda: warnings(caplog) != [])
    assert ["does not serve 'b'" in line for line in warnings(caplog)] == [True]


async def test_servers_that_are_no_vllm_are_not_asked_what_they_serve(fake: Fake) -> None:
    async with watching(a_pool(fake.url, server="other")):
        await asyncio.sleep(0.7)
    assert fake.models_asked == 0


def test_of_what_a_server_serves_few_names_are_shown_and_none_that_a_terminal_obeys() -> None:
    served = ["\x1b[2J\nerror", "\u202eevil", "x" * 10_000, *(f"m{n}" for n in range(500))]
    said = not_served("http://s", "small", "small-7b", served)
    assert said is not None
    assert f"it serves '?[2J?error', '?evil', '{'x' * 100}', 'm0', 'm1' and 498 more. " in said
    assert said.isprintable()


async def test_a_real_simulator_is_asked_for_all_its_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(SimSettings(port=0, models=("a", "small-7b", "c"))) as port:
        url = f"http://127.0.0.1:{port}"
        async with watching(a_pool(url), a_pool(url, model="b")):
            await until(lambda: warnings(caplog) != [])
    (said,) = warnings(caplog)
    assert said.startswith("pool pool-1: ")
    assert "it serves 'a', 'small-7b', 'c'. " in said


# --- what is shown ------------------------------------------------------------------------------


async def test_status_and_metrics_show_what_the_servers_say(fake: Fake) -> None:
    pools = {
        "small": {"model": "s", "slots": 4, "endpoints": [fake.url, "http://127.0.0.1:1"]},
        "hosted": {"model": "h", "slots": 4, "endpoints": [fake.url + "1"], "server": "other"},
    }
    gateway = Gateway(Config.model_validate({"pools": pools}))
    await gateway.start()
    try:
        text = generate_latest(gateway.metrics.registry).decode()
        shown = gateway.status()["pools"]
    finally:
        await gateway.backends.close()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['forebay_replicas_up{pool="small"}']) == 1
    assert float(lines['forebay_replicas_up{pool="hosted"}']) == 1
    assert float(lines['forebay_server_requests{pool="small",state="running"}']) == 3
    assert float(lines['forebay_server_requests{pool="small",state="waiting"}']) == 7
    assert 0 <= float(lines['forebay_server_scrape_age_seconds{pool="small"}']) < 1
    assert not [name for name in lines if "server" in name and "hosted" in name]
    assert isinstance(shown, dict)
    small, hosted = shown["small"], shown["hosted"]
    assert (small["replicas"], small["replicas_up"]) == (2, 1)
    assert small["servers"].pop("scrape_age_s") < 1
    assert small["servers"] == {"running": 3, "waiting": 7}
    assert hosted["servers"] == {"running": None, "waiting": None, "scrape_age_s": None}
