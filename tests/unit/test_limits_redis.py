"""Limits in a real Redis: shared by processors; what holds while it is slow, gone or emptied."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis as client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.config import Config, WhenAway
from extproc.limits import Books, Cost, Grant, Limits, Refused, Rules
from extproc.limits.book import Book
from extproc.limits.redis_store import RedisStore
from extproc.limits.rules import period_of
from extproc.limits.scripts import SETTLE, TAKE
from extproc.limits.shared import SharedStore
from extproc.redis_link import LAST_S, Link, Script, Settings
from extproc.stores import make_limits
from tests.redis_server import MISSING, RedisServer, binary, redis_server
from tests.unit.test_limits import granted, refused, rules

LIMIT_S = 0.05
# Where Redis stays: a process that gets no CPU for a while must not take it for gone.
PATIENT_S = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from redis_server(tmp_path_factory.mktemp("redis"))


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One that may be killed."""
    yield from redis_server(tmp_path_factory.mktemp("redis"))


class Processors:
    def __init__(self) -> None:
        self.made: list[Limits] = []

    def __call__(
        self, server: RedisServer, when_away: WhenAway = "local", time_limit_s: float = LIMIT_S
    ) -> Limits:
        clock = asyncio.get_running_loop().time
        here = Books(clock, time.time)
        link = Link(Settings(server.url, time_limit_s=time_limit_s))
        store = RedisStore(link, lambda tenant: b"h-%d" % (sum(tenant.encode()) * 7919))
        limits = Limits(here, SharedStore(store, here, clock, f"p{len(self.made)}"))
        limits.configure(when_away)
        self.made.append(limits)
        return limits


@pytest.fixture
async def processor() -> AsyncIterator[Processors]:
    make = Processors()
    yield make
    for one in make.made:
        await one.close()


async def take(
    limits: Limits, rules: Rules, tokens: int = 0, nano_usd: int = 0, tenant: str = "acme"
) -> Grant | Refused:
    return await limits.take(tenant, rules, Cost(tokens, nano_usd), 30.0)


def shared(limits: Limits) -> SharedStore:
    assert limits.shared
    return limits.shared


async def kept_up(*processors: Limits) -> None:
    for one in processors:
        one.keep_up(["acme"])
    for one in processors:
        task = shared(one)._keeping_up  # pyright: ignore[reportPrivateUsage]
        assert task
        await task


async def until(condition: Any, limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def open_circuit(limits: Limits, some: Rules) -> None:
    while not shared(limits).is_away:
        await take(limits, some, tenant="nobody")


# --- shared ---------------------------------------------------------------------------------------


async def test_processors_share_what_a_tenant_may_use(
    server: RedisServer, processor: Processors
) -> None:
    three = [processor(server, time_limit_s=PATIENT_S) for _ in range(3)]
    limits = rules(requests_per_minute=60, burst="10s", concurrent_requests=8)
    answers = [await take(three[n % 3], limits) for n in range(30)]
    assert sum(isinstance(one, Grant) for one in answers) == 8
    answers[0].end(admitted=True)  # pyright: ignore
    await until(lambda: not shared(three[0]).redis.link._writes)  # pyright: ignore
    granted(await take(three[2], limits))


async def test_no_tenant_id_gets_into_redis(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what stands there ends by itself."""
    monkeypatch.setenv("FOREBAY_CACHE_SECRET", "of all processors that share")
    config = Config.model_validate(
        {
            "pools": {"small": {"model": "m", "slots": 1}},
            "limits": {"store": {"redis": {"url": server.url}}},
        }
    )
    admin: Any = client.Redis.from_url(server.url)
    admin.flushall()
    limits = make_limits(config, asyncio.get_running_loop().time)
    some = rules(requests_per_minute=6, concurrent_requests=8, budget={"usd": 1})
    granted(await take(limits, some, tenant="secret-tenant"))
    keys: list[bytes] = admin.keys("*")
    assert len(keys) == 2
    assert not [key for key in keys if b"secret" in key or not key.startswith(b"forebay:{")]
    assert all(admin.ttl(key) > 0 for key in keys)
    await limits.close()


async def test_a_redis_that_forgot_the_scripts_is_told_them_again(
    server: RedisServer, processor: Processors
) -> None:
    limits, some = processor(server, time_limit_s=PATIENT_S), rules(requests_per_minute=600)
    grant = granted(await take(limits, some, tenant="t"))
    client.Redis.from_url(server.url).script_flush()
    grant.end(admitted=False)
    granted(await take(limits, some, tenant="t"))
    assert not limits.decided_away


async def test_a_redis_that_forgot_all_is_told_what_was_used(
    server: RedisServer, processor: Processors
) -> None:
    limits = processor(server, time_limit_s=PATIENT_S)
    some = rules(requests_per_minute=6, tokens_per_minute=600, burst="30s", budget={"usd": 1e-6})
    granted(await take(limits, some, 250, 700, "forgotten"))
    client.Redis.from_url(server.url).flushall()
    limits.keep_up(["forgotten"])  # which hears that nothing is known
    await asyncio.sleep(0.1)
    assert refused(await take(limits, some, 0, 301, "forgotten")).which == "budget"
    assert refused(await take(limits, some, 60, 0, "forgotten")).which == "tokens"
    assert (
        dict(granted(await take(limits, some, 0, 300, "forgotten")).headers)["remaining-requests"]
        == "1"
    )


async def test_what_settles_first_after_all_was_forgotten_is_not_lost(
    server: RedisServer, processor: Processors
) -> None:
    limits, some = processor(server, time_limit_s=PATIENT_S), rules(budget={"usd": 1e-6})
    grant = granted(await take(limits, some, 0, 500, "settled"))
    client.Redis.from_url(server.url).flushall()
    limits.settle("settled", some, grant.charged, Cost(0, 600))
    assert refused(await take(limits, some, 0, 401, "settled")).which == "budget"
    granted(await take(limits, some, 0, 400, "settled"))


async def test_processors_count_each_other(server: RedisServer, processor: Processors) -> None:
    three = [processor(server, time_limit_s=PATIENT_S) for _ in range(3)]
    await kept_up(*three)
    await kept_up(*three)
    assert [shared(one).processors for one in three] == [3, 3, 3]


# --- Redis goes -----------------------------------------------------------------------------------


async def test_while_redis_is_gone_each_processor_grants_its_share(
    own_server: RedisServer, processor: Processors
) -> None:
    two = [processor(own_server) for _ in range(2)]
    await kept_up(*two)
    await kept_up(*two)
    some = rules(requests_per_minute=60, burst="20s", concurrent_requests=10, budget={"usd": 1e-6})
    for one in two:
        granted(await take(one, some, 0, 100))
    await kept_up(*two)  # both know of both
    own_server.kill()
    for one in two:
        await open_circuit(one, some)
    counts = [0, 0]
    for n in range(40):
        counts[n % 2] += isinstance(await take(two[n % 2], some, 0, 100), Grant)
    # Of 10 at once a share of 5, one of which runs; of the 800 nanodollars left 400 each.
    assert counts == [4, 4]
    assert two[0].decided_away["local"] > 0


async def test_at_least_one_request_is_granted_by_each(
    own_server: RedisServer, processor: Processors
) -> None:
    two = [processor(own_server) for _ in range(2)]
    await kept_up(*two)
    await kept_up(*two)
    own_server.kill()
    some = rules(requests_per_minute=60, burst="1s", concurrent_requests=1)
    for one in two:
        await open_circuit(one, rules(requests_per_minute=600))
        granted(await take(one, some))
        refused(await take(one, some))


@pytest.mark.parametrize("when_away", ["allow", "refuse"])
async def test_what_else_may_be_done_without_redis(
    own_server: RedisServer, processor: Processors, when_away: WhenAway
) -> None:
    limits, some = processor(own_server, when_away), rules(requests_per_minute=1)
    granted(await take(limits, some))
    own_server.kill()
    for _ in range(20):
        answer = await take(limits, some)
        if when_away == "allow":
            assert granted(answer).headers == ()
        else:
            assert refused(answer).which == "away"


async def test_a_stalled_redis_costs_its_time_limit_and_then_nothing(
    own_server: RedisServer, processor: Processors
) -> None:
    limits, some = processor(own_server), rules(requests_per_minute=600)
    granted(await take(limits, some))
    own_server.stall()
    took: list[float] = []
    for _ in range(12):
        began = time.perf_counter()
        granted(await take(limits, some))
        took.append(time.perf_counter() - began)
    assert max(took[:5]) < LIMIT_S + 0.1
    assert max(took[6:]) < 0.01
    own_server.go_on()
    await until(lambda: not shared(limits).is_away)
    before = sum(limits.decided_away.values())
    granted(await take(limits, some))
    assert sum(limits.decided_away.values()) == before


async def _stalled_under_a_take(
    own_server: RedisServer, processor: Processors
) -> tuple[Limits, Rules]:
    """Nobody waits for that any more; Redis has still to read it."""
    limits = processor(own_server, "refuse")
    some = rules(tokens_per_minute=6000, concurrent_requests=1, budget={"usd": 1})
    granted(await take(limits, some)).end(admitted=True)
    own_server.stall()
    assert refused(await take(limits, some, 500, 1000)).which == "away"
    return limits, some


async def test_what_redis_granted_too_late_is_given_back(
    own_server: RedisServer, processor: Processors
) -> None:
    limits, some = await _stalled_under_a_take(own_server, processor)
    await asyncio.sleep(0.1)
    own_server.go_on()
    await asyncio.sleep(0.3)
    grant = granted(await take(limits, some, 0, 0))
    assert dict(grant.headers)["remaining-tokens"] == "1000"
    assert limits.spent_usd("acme", some) == 0


async def test_what_redis_would_grant_when_nobody_listens_any_more_it_does_not(
    own_server: RedisServer, processor: Processors
) -> None:
    """A take that is longer on its way than its sender keeps the connection."""
    _, some = await _stalled_under_a_take(own_server, processor)
    await asyncio.sleep(LAST_S + 0.3)
    own_server.go_on()
    await until(lambda: client.Redis.from_url(own_server.url).ping())
    other = processor(own_server, "refuse")
    grant = granted(await take(other, some))
    assert dict(grant.headers)["remaining-tokens"] == "1000"
    assert other.spent_usd("acme", some) == 0


async def test_a_clock_that_was_put_forward_costs_one_take(
    server: RedisServer, processor: Processors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis' clock, by hours or by an update of the machine's: here ours is put back."""
    limits, some = processor(server, "refuse"), rules(requests_per_minute=600)
    for ahead_s in (0, 7200, 7200, -7200):
        redis = shared(limits).redis
        monkeypatch.setattr(redis, "_clock", lambda by=ahead_s: time.monotonic() - by)
        for _ in range(3):
            await take(limits, some, tenant="stepped")
    assert limits.decided_away["refuse"] == 1


async def test_what_was_spent_meanwhile_redis_is_told_when_it_is_back(
    own_server: RedisServer, processor: Processors
) -> None:
    limits = processor(own_server)
    some = rules(concurrent_requests=1, budget={"usd": 1e-6})
    before = granted(await take(limits, some, 0, 100))
    own_server.kill()
    await open_circuit(limits, rules(requests_per_minute=600))
    before.end(admitted=True)
    limits.settle("acme", some, before.charged, Cost(0, 300))
    alone = granted(await take(limits, some, 0, 50))
    alone.end(admitted=True)
    limits.settle("acme", some, alone.charged, Cost(0, 400))
    own_server.start()
    await until(lambda: not shared(limits).is_away)
    await kept_up(limits)
    await until(lambda: not shared(limits).redis.link._writes)  # pyright: ignore
    assert refused(await take(limits, some, 0, 301)).which == "budget"
    granted(await take(limits, some, 0, 300))


async def test_a_lease_that_ended_while_redis_was_away_is_free_when_it_is_back(
    own_server: RedisServer, processor: Processors
) -> None:
    limits, some = processor(own_server), rules(concurrent_requests=1)
    grant = granted(await take(limits, some))
    own_server.stall()
    await open_circuit(limits, rules(requests_per_minute=600))
    grant.end(admitted=True)
    own_server.go_on()
    await until(lambda: not shared(limits).is_away)
    await kept_up(limits)
    await until(lambda: not shared(limits).redis.link._writes)  # pyright: ignore
    granted(await take(limits, some))


async def test_what_ends_as_redis_dies_is_told_when_it_is_back(
    tmp_path: Path, processor: Processors
) -> None:
    """Before anybody has found out that it is away; with a Redis that forgets nothing."""
    if binary() is None:
        pytest.skip(MISSING)
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always", cwd=tmp_path)
    server.start()
    try:
        limits = processor(server, time_limit_s=PATIENT_S)
        some = rules(concurrent_requests=1, budget={"usd": 1e-6})
        grant = granted(await take(limits, some, 0, 100))
        server.kill()
        grant.end(admitted=True)
        limits.settle("acme", some, grant.charged, Cost(0, 300))
        await until(lambda: not shared(limits).redis.link._writes)  # pyright: ignore
        assert not shared(limits).is_away
        server.start()
        await kept_up(limits)
        await until(lambda: not shared(limits).redis.link._writes)  # pyright: ignore
        assert refused(await take(limits, some, 0, 701)).which == "budget"
        granted(await take(limits, some, 0, 700))
    finally:
        server.kill()


async def test_an_answer_that_cannot_be_used_does_not_hold_up_what_is_written_after_it(
    server: RedisServer, processor: Processors, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(tenant_id: str) -> None:
        raise ValueError(tenant_id)

    limits = processor(server, time_limit_s=PATIENT_S)
    limits.on_spent = broken
    some = rules(concurrent_requests=1, budget={"usd": 1e-6, "when_spent": "stop"})
    grant = granted(await take(limits, some, 0, 100, tenant="broken"))
    limits.settle("broken", some, grant.charged, Cost(0, 2000))
    await until(lambda: not shared(limits).redis.link._writes)  # pyright: ignore
    assert caplog.messages == ["an answer of Redis was not used: ValueError"]
    grant.end(admitted=True)
    await until(lambda: not shared(limits).redis.link._writes)  # pyright: ignore
    later = rules(concurrent_requests=1)
    for _ in range(3):
        granted(await take(limits, later, tenant="broken")).end(admitted=True)
        await until(lambda: not shared(limits).redis.link._writes)  # pyright: ignore


async def test_a_redis_that_refuses_all_but_probes_is_told_of_once_and_tried_seldom(
    tmp_path: Path, processor: Processors, caplog: pytest.LogCaptureFixture
) -> None:
    if binary() is None:
        pytest.skip(MISSING)
    caplog.set_level("INFO")
    server = RedisServer(cwd=tmp_path)
    server.start()
    try:
        limits, some = (
            processor(server, time_limit_s=PATIENT_S),
            rules(requests_per_minute=6_000_000),
        )
        with client.Redis.from_url(server.url) as admin:
            admin.config_set("maxmemory", "1")
            link, opened, was_open = shared(limits).redis.link, 0, False
            began = time.monotonic()
            while time.monotonic() < began + 2.5:
                granted(await take(limits, some))
                opened += link.is_open and not was_open
                was_open = link.is_open
                await asyncio.sleep(0.005)
            assert 1 <= opened <= 6, "each time after twice as long"
            admin.config_set("maxmemory", "0")
        await until(lambda: not link.is_open)
        granted(await take(limits, some))
    finally:
        server.kill()
    away, again = caplog.messages
    assert away.startswith("Redis is away (")
    assert again == f"Redis answers again ({link.settings.block})"


async def test_many_budgets_are_asked_about_in_turn(
    server: RedisServer, processor: Processors, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, asked = processor(server, time_limit_s=PATIENT_S), list[set[str]]()
    monkeypatch.setattr(shared(limits), "keep_up", lambda about, told: asked.append(set(about)))
    tenants = [f"tenant {number}" for number in range(1003)]
    for _ in range(21):
        limits.keep_up(tenants)
    assert max(map(len, asked)) <= 50
    assert set[str]().union(*asked) == set(tenants)


async def test_an_outage_grants_no_second_burst(
    own_server: RedisServer, processor: Processors
) -> None:
    """Not when it begins, nor when a Redis that has forgotten all is back."""
    limits, some = processor(own_server), rules(requests_per_minute=60, burst="30s")
    began = time.monotonic()
    count = 0
    for _ in range(40):
        count += isinstance(await take(limits, some), Grant)
    own_server.kill()
    await open_circuit(limits, rules(requests_per_minute=600))
    for _ in range(40):
        count += isinstance(await take(limits, some), Grant)
    own_server.start()
    await until(lambda: not shared(limits).is_away)
    for _ in range(40):
        count += isinstance(await take(limits, some), Grant)
    assert 30 <= count <= 30 + time.monotonic() - began + 1


# --- the scripts do what the books do -------------------------------------------------------------

_TIME = "redis.call('TIME')"


class Clocked:
    """A script as if Redis' clock said what is given."""

    def __init__(self, server: RedisServer, script: Script) -> None:
        assert _TIME in script.text
        text = script.text.replace(_TIME, "{ARGV[#ARGV - 1], ARGV[#ARGV]}")
        self._run: Any = client.Redis.from_url(server.url).register_script(text)

    def __call__(self, now_s: float, keys: list[str], *args: object) -> Any:
        whole = int(now_s)
        return self._run(keys, [*args, whole, round((now_s - whole) * 1e6)])


@pytest.mark.parametrize("year", [1970, 1999, 2000, 2024, 2026, 2027, 2100])
def test_redis_knows_the_calendar(server: RedisServer, year: int) -> None:
    admin: Any = client.Redis.from_url(server.url)
    take_at = Clocked(server, TAKE)
    for month in range(1, 13):
        for day in (1, 28):
            for per in ("day", "month"):
                now = datetime(year, month, day, 23, 59, 59, tzinfo=UTC).timestamp()
                for moment in (now, now + 86_400 * 3):
                    admin.delete("k")
                    rest = ("", "", "", "", "", "", 1, 10, per, 0, 1, "", "", "", 0, 0, "")
                    answer = take_at(moment, ["k", "l"], *rest)
                    assert answer[5] == period_of(moment, per)


STEPS = st.lists(
    st.tuples(
        st.floats(0, 20).map(lambda s: round(s, 3)),
        st.sampled_from(["take", "take", "take", "settle", "release"]),
        st.integers(0, 400),
        st.integers(0, 900),
    ),
    max_size=25,
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS, st.integers(1, 600), st.integers(1, 6000), st.integers(1, 4), st.integers(1, 5000))
def test_the_scripts_do_step_by_step_what_a_book_does(
    server: RedisServer,
    steps: list[tuple[float, str, int, int]],
    requests: int,
    tokens: int,
    concurrent: int,
    nano_usd: int,
) -> None:
    limits = rules(
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        concurrent_requests=concurrent,
        budget={"usd": nano_usd / 1e9},
    )
    assert limits.requests
    assert limits.tokens
    assert limits.budget
    admin: Any = client.Redis.from_url(server.url)
    admin.delete("k", "l")
    take_at, settle_at = Clocked(server, TAKE), Clocked(server, SETTLE)
    rates = [str(x) for rate in (limits.requests, limits.tokens) for x in (rate.per_s, rate.most)]
    book, now = Book(), 1_800_000_000.0
    charged: list[tuple[str, int]] = []
    for number, (after_s, step, count, usd) in enumerate(steps):
        now += after_s
        lease = f"lease{number}"
        if step == "take":
            mine = book.take(limits, Cost(count, usd), lease, 30.0, now, now)
            answer = take_at(
                *(now, ["k", "l"], *rates, concurrent, lease, 30_000, limits.budget.most, "day"),
                *(count, usd, "", "", "", 0, 0, ""),
            )
            assert answer[0].decode() == (mine.refused or "")
            assert float(answer[1]) == pytest.approx(mine.levels.requests, abs=1e-3)
            assert float(answer[2]) == pytest.approx(mine.levels.tokens, abs=1e-2)
            assert float(answer[4]) == mine.levels.spent
            # Leases that have expired are counted until somebody needs their place.
            assert max(answer[3], mine.levels.running) <= concurrent
            assert answer[5] == mine.levels.period
            if mine.refused is None:
                charged.append((lease, mine.levels.period))
        elif charged:
            one, period = charged[count % len(charged)]
            if step == "release":
                book.release(one)
                admin.zrem("l", one)
                continue
            more = Cost(count - 200, usd - 450)
            levels = book.settle(limits, more, period, now)
            answer = settle_at(now, ["k"], *rates, *more, "day", period, 0, 0)
            if period == period_of(now, "day"):
                assert float(answer[0]) == levels.spent
