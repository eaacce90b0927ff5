"""What a tenant may use: never more, nothing charged for a refusal, and books that add up. The same
for both stores: in memory, and in a real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from pydantic import ValidationError

from extproc.config import BudgetConfig, Config, ConfigError, TenantConfig, from_document
from extproc.costs import Budgeted
from extproc.gateway import Gateway
from extproc.limits import (
    Books,
    Charged,
    Cost,
    Grant,
    Limits,
    Refused,
    Rules,
    read_charged,
    rules_of,
    stop_streams,
)
from extproc.limits import rules as arithmetic
from extproc.limits.book import Book
from extproc.limits.redis_store import RedisStore
from extproc.limits.rules import NANO, Levels, Rate, duration, ends_at, period_of
from extproc.limits.shared import SharedStore
from extproc.redis_link import Link, Settings
from extproc.refusals import limited
from extproc.stores import make_limits
from tests.redis_server import RedisServer, redis_server
from tests.unit.logged import logged

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()


def rules(**keys: object) -> Rules:
    found = rules_of(TenantConfig.model_validate(keys))
    assert found
    return found


# --- arithmetic -----------------------------------------------------------------------------------


def test_a_tenant_that_says_nothing_has_no_rules() -> None:
    assert rules_of(TenantConfig()) is None
    assert rules_of(TenantConfig.model_validate({"burst": "1s"})) is None


def test_a_bucket_holds_its_burst_but_at_least_one_request() -> None:
    assert rules(requests_per_minute=600).requests == Rate(600, 10, 100)
    assert rules(requests_per_minute=1, burst="1s").requests == Rate(1, 1 / 60, 1)


def test_money_is_whole_nanodollars() -> None:
    budget = rules(budget={"usd": 0.1, "soft": 0.5}).budget
    assert budget
    assert (budget.most, budget.soft, budget.per, budget.stops) == (
        NANO // 10,
        NANO // 20,
        "day",
        False,
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-1, "0s"), (0, "0s"), (0.0201, "21ms"), (1, "1s"), (1.5, "1.5s"), (59.9, "59.9s")),
        *((60, "1m0s"), (359.2, "6m0s"), (3600, "1h0m0s"), (5025, "1h23m45s")),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 4e9))
def test_a_period_ends_where_the_next_one_begins(at_s: float) -> None:
    for per in ("day", "month"):
        period = period_of(at_s, per)
        end = ends_at(period, per).timestamp()
        assert end > at_s
        assert period_of(end, per) == period + 1
        assert period_of(end - 1, per) == period


def test_what_was_charged_survives_the_log() -> None:
    assert read_charged(Charged(12, 3400, 20_000).told()) == Charged(12, 3400, 20_000)
    for text in ("-", "", "1:2", "1:2:x", "1:-2:3", "1:2:3:4"):
        assert read_charged(text) is None


# --- one book, any arrivals -----------------------------------------------------------------------

ARRIVALS = st.lists(
    st.tuples(st.floats(0, 20), st.integers(0, 400), st.integers(0, 300), st.booleans()),
    max_size=60,
)


@settings(max_examples=300)
@given(ARRIVALS, st.integers(1, 600), st.integers(1, 6000), st.floats(0.1, 30))
def test_never_more_than_the_rate_and_the_burst_allow(
    arrivals: list[tuple[float, int, int, bool]], per_minute: int, tokens: int, burst_s: float
) -> None:
    """Whatever was estimated, settled or given back meanwhile."""
    limits = rules(
        requests_per_minute=per_minute, tokens_per_minute=tokens, burst=f"{burst_s:.3f}s"
    )
    assert limits.requests
    assert limits.tokens
    book, now, granted, used, largest = Book(), 0.0, 0, 0, 0
    for after_s, estimate, counted, settles in arrivals:
        now += after_s
        before = book.requests, book.tokens
        taken = book.take(limits, Cost(estimate, 0), "", 1, now, NOON + now)
        if taken.refused:
            book_after = taken.levels
            assert book_after.requests >= min(before[0], limits.requests.most)
            assert book_after.tokens >= min(before[1], limits.tokens.most)
            continue
        granted += 1
        used += estimate
        largest = max(largest, estimate)
        if settles:
            book.settle(limits, Cost(counted - estimate, 0), 0, now)
            used += counted - estimate
            largest = max(largest, counted)
        assert granted <= limits.requests.per_s * now + limits.requests.most + 1e-6
        # The last one may have cost more than the bucket holds, or than was estimated.
        assert used <= limits.tokens.per_s * now + limits.tokens.most + largest + 1e-6


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_settled_estimate_leaves_what_the_count_alone_would(estimate: int, counted: int) -> None:
    limits = rules(tokens_per_minute=60_000, budget={"usd": 1})
    one, other = Book(), Book()
    charged = one.take(limits, Cost(estimate, estimate * 7), "", 1, 5.0, NOON)
    one.settle(
        limits, Cost(counted - estimate, (counted - estimate) * 7), charged.levels.period, 5.0
    )
    other.take(limits, Cost(counted, counted * 7), "", 1, 5.0, NOON)
    assert one.levels(limits) == other.levels(limits)


def test_a_request_dearer_than_the_bucket_waits_for_it_to_be_full_and_leaves_a_debt() -> None:
    limits = rules(tokens_per_minute=60, burst="10s")  # 1 a second, 10 at once
    book = Book()
    assert book.take(limits, Cost(25, 0), "", 1, 0.0, NOON).refused is None
    assert book.tokens == -15
    refused = book.take(limits, Cost(25, 0), "", 1, 20.0, NOON)
    assert refused.refused == "tokens"
    assert arithmetic.retry_after_s(refused, limits, Cost(25, 0)) == pytest.approx(5)
    assert book.take(limits, Cost(25, 0), "", 1, 25.0, NOON).refused is None


def test_a_clock_that_is_set_back_grants_nothing() -> None:
    limits, book = rules(requests_per_minute=60, burst="1s"), Book()
    assert book.take(limits, Cost(0, 0), "", 1, 100.0, NOON).refused is None
    assert book.take(limits, Cost(0, 0), "", 1, 50.0, NOON).refused == "requests"
    assert book.take(limits, Cost(0, 0), "", 1, 51.1, NOON).refused is None


def test_a_changed_limit_holds_at_once_and_what_is_left_stays() -> None:
    book = Book()
    few, many = rules(requests_per_minute=60), rules(requests_per_minute=600)
    for _ in range(10):
        assert book.take(few, Cost(0, 0), "", 1, 0.0, NOON).refused is None
    assert book.take(few, Cost(0, 0), "", 1, 0.0, NOON).refused == "requests"
    assert book.take(many, Cost(0, 0), "", 1, 0.0, NOON).refused == "requests"
    assert book.take(many, Cost(0, 0), "", 1, 0.1, NOON).refused is None
    book.take(many, Cost(0, 0), "", 1, 100.0, NOON)
    assert book.take(few, Cost(0, 0), "", 1, 100.0, NOON).levels.requests == 9


def test_a_new_period_begins_with_nothing_spent_and_the_old_one_is_settled_in_vain() -> None:
    limits, book = rules(budget={"usd": 1e-6}), Book()
    first = book.take(limits, Cost(0, 900), "", 1, 0.0, NOON)
    assert book.take(limits, Cost(0, 200), "", 1, 0.0, NOON).refused == "budget"
    assert book.take(limits, Cost(0, 200), "", 1, 0.0, NOON + 43_200).levels.spent == 200
    assert book.settle(limits, Cost(0, -900), first.levels.period, 0.0).spent == 200


def test_of_several_that_share_without_hearing_of_each_other_each_has_its_share() -> None:
    limits = rules(
        requests_per_minute=600, tokens_per_minute=6000, concurrent_requests=7, budget={"usd": 1e-6}
    )
    books = [Book(), Book(), Book()]

    def granted(book: Book, lease: int) -> bool:
        taken = book.take(limits, Cost(0, 90), str(lease), 1, 0.0, NOON, weight=3)
        return taken.refused is None

    assert sum(granted(book, lease) for book in books for lease in range(20)) == 6  # 2 each of 7
    books = [Book(), Book(), Book()]
    free = limits._replace(concurrent=None)
    many = [
        book.take(free, Cost(0, 90), "", 1, 0.0, NOON, weight=3).refused
        for book in books
        for _ in range(20)
    ]
    assert many.count(None) == 9  # 3 * 90 each of 1000


# --- memory stays bounded -------------------------------------------------------------------------


def test_idle_tenants_are_forgotten_first() -> None:
    now = [1000.0]
    books = Books(lambda: now[0], lambda: NOON, most_books=10)
    limits = rules(requests_per_minute=60, concurrent_requests=5)
    books.take("busy", limits, Cost(0, 0), "lease", 5000.0)
    for number in range(50):
        now[0] += 20
        books.take(f"t{number}", limits, Cost(0, 0), "", 0.0)
        books.release(f"t{number}", "")
    assert len(books) == 10
    assert books.look("busy")


def test_memory_is_bounded_even_where_all_are_busy() -> None:
    books = Books(lambda: 1000.0, lambda: NOON, most_books=10)
    limits = rules(concurrent_requests=5)
    for number in range(50):
        books.take(f"t{number}", limits, Cost(0, 0), "lease", 1000.0)
    assert len(books) == 10


# --- both stores ----------------------------------------------------------------------------------


@dataclass
class Rig:
    limits: Limits
    redis: RedisServer | None

    async def take(
        self,
        tenant: str,
        rules: Rules,
        tokens: int = 0,
        nano_usd: int = 0,
        lease_s: float = 60.0,
    ) -> Grant | Refused:
        return await self.limits.take(tenant, rules, Cost(tokens, nano_usd), lease_s)

    async def levels(self, tenant: str, rules: Rules) -> Levels:
        """As a look at them; what it takes it gives back, but for the request."""
        store = self.limits.shared or self.limits.here
        await self.written()
        taken = store.take(tenant, rules, Cost(0, 0), "look", 60.0)
        found = await taken if asyncio.iscoroutine(taken) else taken
        store.release(tenant, "look")
        await self.written()
        assert found
        assert found.refused is None
        return found.levels

    async def written(self) -> None:
        """Until what nobody waits for is done."""
        if self.limits.shared:
            link = self.limits.shared.redis.link
            while (task := link._writing) and not task.done():  # pyright: ignore
                await asyncio.wait((task,))


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from redis_server(tmp_path_factory.mktemp("redis"))


def shared(server: RedisServer, name: str = "p", limit_s: float = 1.0) -> Limits:
    clock = asyncio.get_running_loop().time
    here = Books(clock, time.time)
    link = Link(Settings(server.url, time_limit_s=limit_s))
    redis = RedisStore(link, lambda tenant: b"h-" + tenant.encode().hex().encode())
    return Limits(here, SharedStore(redis, here, clock, name))


@pytest.fixture(params=["memory", "redis"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "memory":
        yield Rig(Limits(Books(asyncio.get_running_loop().time, time.time)), None)
        return
    server: RedisServer = request.getfixturevalue("valkey")
    made = shared(server)
    assert made.shared
    await made.shared.redis.link.insist("FLUSHALL")
    yield Rig(made, server)
    await made.close()


def granted(answer: Grant | Refused) -> Grant:
    assert isinstance(answer, Grant), answer
    return answer


def refused(answer: Grant | Refused) -> Refused:
    assert isinstance(answer, Refused)
    return answer


SLOW = {
    "requests_per_minute": 6,
    "tokens_per_minute": 600,
    "burst": "30s",
}  # 3 requests, 300 tokens


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("requests", "You may use 6 requests a minute, and at most 3 of them at once."),
        ("tokens", "You may use 600 tokens a minute, and at most 300 of them at once."),
        ("concurrent", "As many of your requests run as may at once: 2."),
    ],
)
def test_a_refusal_names_the_limit_that_it_met(which: str, says: str) -> None:
    """Only a part of a minute's may come at once: who is not told takes the limit for broken."""
    answer = limited(Refused(which, 3.2), rules(**SLOW, concurrent_requests=2))
    assert (answer.status, answer.decision) == (429, "rate_limit_exceeded")
    assert says in answer.body.decode()
    assert b"Try again in 4 s." in answer.body


async def test_a_bucket_is_granted_empty_and_then_refuses(rig: Rig) -> None:
    limits = rules(**SLOW)
    for left in ("2", "1", "0"):
        grant = granted(await rig.take("a", limits, 10))
        assert dict(grant.headers)["remaining-requests"] == left
    answer = refused(await rig.take("a", limits, 10))
    assert answer.which == "requests"
    assert 9 < answer.retry_after_s <= 10
    assert dict(answer.headers)["limit-requests"] == "6"
    granted(await rig.take("b", limits, 10))  # another tenant has its own


async def test_a_bucket_refills(rig: Rig) -> None:
    limits = rules(requests_per_minute=600, burst="0.1s")
    granted(await rig.take("a", limits))
    answer = refused(await rig.take("a", limits))
    assert 0 < answer.retry_after_s <= 0.1
    await asyncio.sleep(answer.retry_after_s + 0.01)
    granted(await rig.take("a", limits))


async def test_a_refusal_charges_nothing_at_all(rig: Rig) -> None:
    limits = rules(**SLOW, concurrent_requests=2, budget={"usd": 1e-6, "per": "month"})
    before = await rig.levels("a", limits)
    for which, tokens, nano_usd in (("tokens", 301, 1), ("budget", 1, 1001)):
        full = limits._replace(tokens=limits.tokens and limits.tokens._replace(most=301.0))
        answer = refused(await rig.take("a", full, tokens, nano_usd))
        assert answer.which == which
    after = await rig.levels("a", limits)
    assert after.requests == pytest.approx(before.requests - 1, abs=0.1)  # the look itself
    assert after.tokens == pytest.approx(300, abs=1)
    assert (after.spent, after.running) == (0, 1)


async def test_what_was_not_admitted_is_given_back_but_for_the_request(rig: Rig) -> None:
    limits = rules(**SLOW, concurrent_requests=5, budget={"usd": 1})
    grant = granted(await rig.take("a", limits, 200, 5000))
    grant.end(admitted=False)
    levels = await rig.levels("a", limits)
    assert levels.tokens == pytest.approx(300, abs=1)
    assert levels.requests == pytest.approx(1, abs=0.1)  # of 3: it, and the look
    assert (levels.spent, levels.running) == (0, 1)


async def test_what_was_admitted_is_corrected_by_the_count(rig: Rig) -> None:
    limits = rules(**SLOW, concurrent_requests=5, budget={"usd": 1})
    grant = granted(await rig.take("a", limits, 200, 5000))
    charged = read_charged(grant.charged.told())
    assert charged
    grant.end(admitted=True)
    rig.limits.settle("a", limits, charged, Cost(150, 7000))
    levels = await rig.levels("a", limits)
    assert levels.tokens == pytest.approx(150, abs=1)
    assert (levels.spent, levels.running) == (7000, 1)


async def test_never_more_at_once_than_may_be(rig: Rig) -> None:
    limits = rules(concurrent_requests=3)
    answers = await asyncio.gather(*(rig.take("a", limits) for _ in range(20)))
    running = [one for one in answers if isinstance(one, Grant)]
    assert len(running) == 3
    assert {one.which for one in answers if isinstance(one, Refused)} == {"concurrent"}
    running[0].end(admitted=True)
    await rig.written()
    granted(await rig.take("a", limits))
    refused(await rig.take("a", limits))


async def test_a_lease_that_nobody_ends_ends_by_itself(rig: Rig) -> None:
    limits = rules(concurrent_requests=1)
    granted(await rig.take("a", limits, lease_s=0.2))
    refused(await rig.take("a", limits))
    await asyncio.sleep(0.25)
    granted(await rig.take("a", limits))


async def test_a_budget_is_never_granted_above_and_says_when_the_next_begins(rig: Rig) -> None:
    for per in ("day", "month"):
        limits = rules(budget={"usd": 1e-6, "per": per, "soft": 0.5})
        granted(await rig.take(per, limits, 0, 499))
        assert not rig.limits.is_frugal(per, limits)
        granted(await rig.take(per, limits, 0, 1))
        assert rig.limits.is_frugal(per, limits)
        answer = refused(await rig.take(per, limits, 0, 501))
        assert answer.which == "budget"
        now = time.time()
        assert answer.ends_at == ends_at(period_of(now, per), per)
        granted(await rig.take(per, limits, 0, 500))
        assert rig.limits.spent_usd(per, limits) == pytest.approx(1e-6)


async def test_the_books_add_up_after_any_interleaving(rig: Rig) -> None:
    """Of 200 exchanges at once, each refused, given back, or corrected: what is spent is what was
    counted, to the nanodollar, and nothing runs."""
    limits = rules(concurrent_requests=50, budget={"usd": 1})
    sums = {"counted": 0}

    async def exchange(number: int) -> None:
        answer = await rig.take("a", limits, 10, 1000 + number)
        if isinstance(answer, Refused):
            return
        await asyncio.sleep(number % 7 / 1000)
        admitted = number % 3 != 0
        answer.end(admitted=admitted)
        if admitted:
            await asyncio.sleep(number % 5 / 1000)
            counted = 17 * number
            rig.limits.settle("a", limits, answer.charged, Cost(10, counted))
            sums["counted"] += counted

    await asyncio.gather(*(exchange(number) for number in range(200)))
    levels = await rig.levels("a", limits)
    assert sums["counted"] > 0
    assert (levels.spent, levels.running) == (sums["counted"], 1)


async def test_streams_are_stopped_once_the_money_is_gone(rig: Rig) -> None:
    heard: list[str] = []
    rig.limits.on_spent = heard.append
    limits = rules(budget={"usd": 1e-6, "when_spent": "stop"})
    others = rules(budget={"usd": 1e-6})
    running, ended = (
        granted(await rig.take("a", limits, 0, 400)),
        await rig.take("a", limits, 0, 400),
    )
    granted(await rig.take("b", others, 0, 400))
    granted(ended).end(admitted=True)
    rig.limits.settle("a", limits, granted(ended).charged, Cost(0, 500))
    rig.limits.settle("b", others, Charged(0, 400, running.charged.period), Cost(0, 5000))
    await rig.written()
    assert heard == []
    rig.limits.settle("a", limits, Charged(0, 0, running.charged.period), Cost(0, 100))
    await rig.written()
    assert heard == ["a"]
    running.end(admitted=True)
    rig.limits.settle("a", limits, Charged(0, 0, running.charged.period), Cost(0, 100))
    await rig.written()
    assert heard == ["a"], "nothing runs any more"


async def test_the_budget_of_the_latest_request_holds_for_all_that_run(rig: Rig) -> None:
    heard: list[str] = []
    rig.limits.on_spent = heard.append
    before, raised = (rules(budget={"usd": usd, "when_spent": "stop"}) for usd in (1e-6, 2e-6))
    old = granted(await rig.take("a", before, 0, 100))
    granted(await rig.take("a", raised, 0, 100))
    old.end(admitted=True)
    rig.limits.settle("a", raised, old.charged, Cost(0, 1500))
    await rig.written()
    assert heard == []
    rig.limits.settle("a", raised, Charged(0, 0, old.charged.period), Cost(0, 500))
    await rig.written()
    assert heard == ["a"]


def test_the_budget_block_is_checked() -> None:
    for wrong in ({"usd": 0}, {"usd": 1, "per": "week"}, {"usd": 1, "soft": 1.5}, {}):
        with pytest.raises(ValidationError):
            BudgetConfig.model_validate(wrong)


# --- the gateway ----------------------------------------------------------------------------------

PRICE = {"input": 1.0, "cached_input": 0.5, "output": 10.0}
SERVED = {
    "kind": "json",
    "tenant": "acme",
    "status": "200",
    "served_by": "small",
    "upstream_host": "127.0.0.1:1",
    "attempts": "1",
    "prompt_tokens": "100",
    "cached_tokens": "40",
    "completion_tokens": "10",
}
LIMITED = {"tokens_per_minute": 60_000, "burst": "60s", "budget": {"usd": 1, "per": "month"}}


def config(**policy: object) -> Config:
    pool = {"model": "s", "slots": 4, "price": PRICE}
    tenants = {"acme": LIMITED, "default": {"requests_per_minute": 5}}
    return Config.model_validate({"pools": {"small": pool}, "tenants": tenants} | policy)


async def charged(gateway: Gateway, tokens: int, nano_usd: int) -> Charged:
    some = gateway.policy.tenants.rules_of("acme")
    assert some
    return granted(await gateway.limits.take("acme", some, Cost(tokens, nano_usd), 60)).charged


def left(gateway: Gateway) -> tuple[float, float]:
    some = gateway.policy.tenants.rules_of("acme")
    book = gateway.limits.here.look("acme")
    assert some
    assert book
    return book.tokens, gateway.limits.spent_usd("acme", some)


@pytest.mark.parametrize(
    ("changes", "tokens", "usd"),
    [
        ({}, 110, (60 * 1.0 + 40 * 0.5 + 10 * 10.0) / 1e6),
        ({"served_by": "-", "upstream_host": "-", "status": "503"} | dict.fromkeys(
            ("prompt_tokens", "cached_tokens", "completion_tokens"), "-"), 0, 0.0),
        ({"status": "0"} | dict.fromkeys(
            ("prompt_tokens", "cached_tokens", "completion_tokens"), "-"), 50, 50e-6),
    ],
)  # fmt: skip
async def test_the_log_settles_what_was_charged(
    changes: dict[str, str], tokens: int, usd: float
) -> None:
    """As it was counted; to nothing, if no server had it; else as it is estimated and billed."""
    gateway = Gateway(config())
    told = (await charged(gateway, 300, 5_000_000)).told()
    bill = f"small 300 50 other interactive - 1 0 0 {told} acme"
    gateway.finished.account(logged(SERVED | {"bill": bill} | changes))
    assert left(gateway) == (pytest.approx(60_000 - tokens, abs=100), pytest.approx(usd))


async def test_a_tenant_whose_limits_are_gone_settles_nothing() -> None:
    gateway = Gateway(config())
    told = (await charged(gateway, 300, 5_000_000)).told()
    await gateway.configure(config(tenants={"acme": {}}))
    bill = f"small 300 50 other interactive - 1 0 0 {told} acme"
    gateway.finished.account(logged(SERVED | {"bill": bill}))
    await gateway.close()


async def test_a_reload_keeps_the_books_and_another_store_begins_new_ones(
    valkey: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CACHE_SECRET", "of all processors that share")
    gateway = Gateway(config())
    await charged(gateway, 50_000, 0)
    less = LIMITED | {"tokens_per_minute": 30_000}
    await gateway.configure(config(tenants={"acme": less}))
    some = gateway.policy.tenants.rules_of("acme")
    assert some
    assert isinstance(await gateway.limits.take("acme", some, Cost(15_000, 0), 60), Refused)
    redis = {"store": {"redis": {"url": valkey.url}}, "when_away": "refuse"}
    await gateway.configure(config(limits=redis))
    assert gateway.limits.shared
    assert gateway.limits.shared.when_away == "refuse"
    same = gateway.limits
    await gateway.configure(config(limits=redis | {"when_away": "allow"}))
    assert gateway.limits is same
    assert gateway.limits.shared.when_away == "allow"
    await gateway.close()


async def test_what_runs_while_redis_is_reached_in_another_way_gives_its_place_back(
    valkey: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CACHE_SECRET", "of all processors that share")
    some = rules(concurrent_requests=1)

    def reached(**how: object) -> Config:
        redis = {"url": valkey.url, "time_limit": "500ms", **how}
        return config(limits={"store": {"redis": redis}, "when_away": "refuse"})

    gateway = Gateway(reached())
    grant = granted(await gateway.limits.take("moved", some, Cost(0, 0), 60))
    await gateway.configure(reached(connections=3))
    assert refused(await gateway.limits.take("moved", some, Cost(0, 0), 60)).which == "concurrent"
    grant.end(admitted=True)
    for _ in range(100):
        again = await gateway.limits.take("moved", some, Cost(0, 0), 60)
        if isinstance(again, Grant):
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("its place is still taken")
    again.end(admitted=True)
    await gateway.close()


async def test_the_status_and_the_costs_tell_of_named_tenants_alone() -> None:
    gateway = Gateway(config())
    await charged(gateway, 100, 250_000_000)
    other = gateway.policy.tenants.rules_of("somebody")
    assert other
    granted(await gateway.limits.take("somebody", other, Cost(1, 0), 60))
    limits: Any = gateway.limits.status(gateway.policy.tenants.named_rules)
    assert limits["store"] == "memory"
    assert list(limits["tenants"]) == ["acme"]
    assert limits["tenants"]["acme"]["spent_usd"] == 0.25
    assert gateway.budgets() == [Budgeted("acme", "month", 1.0, 0.25)]
    assert "somebody" not in generate_latest(gateway.metrics.registry).decode()


def test_redis_for_limits_needs_the_secret_by_which_names_are_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FOREBAY_CACHE_SECRET", raising=False)
    redis = {"store": {"redis": {"url": "redis://127.0.0.1:1"}}}
    with pytest.raises(ConfigError, match="secret_file: missing"):
        make_limits(config(limits=redis), time.monotonic)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"limits": {"store": "disk"}}, "forebay.limits.store: write memory, or a block"),
        ({"limits": {"when_away": "panic"}}, "forebay.limits.when_away: must be"),
        ({"limits": {"store": {"redis": {"ulr": "redis://h:1"}}}}, "did you mean url?"),
        ({"tenants": {"a": {"requests_per_minute": 0}}}, "requests_per_minute: must be above 0"),
        ({"tenants": {"a": {"burst": 10}}}, "burst: write a duration with its unit"),
        ({"tenants": {"a": {"budget": {"usd": 1, "pre": "day"}}}}, "did you mean per?"),
        ({"tenants": {"a": {"budget": {}}}}, "forebay.tenants.a.budget.usd: missing"),
    ],
)
def test_what_is_written_wrong_is_told_with_its_place(policy: dict[str, Any], message: str) -> None:
    pools = {"pools": {"small": {"model": "s", "slots": 1}}}
    with pytest.raises(ConfigError) as error:
        from_document({"forebay": pools | policy})
    assert message in str(error.value)


# --- streams that are stopped ---------------------------------------------------------------------


class StandIn:
    """A limiter whose leases can be stopped."""

    def __init__(self) -> None:
        self.stopped: list[tuple[str, str]] = []

    def leases_of(self, tenant: str) -> list[Any]:
        return [SimpleNamespace(stop=lambda reason: self.stopped.append((tenant, reason)))] * 2


def test_all_streams_of_a_tenant_are_stopped_in_all_pools() -> None:
    first, second = StandIn(), StandIn()
    stop_streams([first, object(), second], "acme")
    assert first.stopped == second.stopped == [("acme", "budget")] * 2
