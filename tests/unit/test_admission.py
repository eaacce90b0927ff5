"""The gate and the limiter, without Envoy: hysteresis, order, and slots that are never lost."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.admission import Gate, Lease, Limiter, Shed, retry_after_s


def limiter(slots: int, high: int, low: int) -> Limiter:
    return Limiter(slots, Gate(high, low), clock=lambda: 0.0)


async def test_a_request_that_finds_a_free_slot_holds_it_at_once() -> None:
    pool = limiter(2, 1, 0)
    assert pool.enter().state == "holding"
    assert pool.in_flight == 1


async def test_the_queue_is_served_in_order() -> None:
    pool = limiter(1, 9, 0)
    holder, first, second = pool.enter(), pool.enter(), pool.enter()
    assert (first.state, second.state) == ("queued", "queued")
    holder.end()
    assert (first.state, second.state) == ("holding", "queued")
    first.end()
    assert second.state == "holding"
    assert second.granted.done()


async def test_shedding_starts_at_the_high_mark_and_ends_at_the_low_mark() -> None:
    pool = limiter(1, 3, 1)
    leases = [pool.enter() for _ in range(4)]  # one holds, three wait
    with pytest.raises(Shed):
        pool.enter()
    leases.pop().end()  # two wait: still above the low mark
    with pytest.raises(Shed):
        pool.enter()
    leases.pop().end()  # one waits
    assert not pool.gate.shedding
    assert pool.enter().state == "queued"


async def test_high_water_zero_means_that_nobody_waits() -> None:
    pool = limiter(1, 0, 0)
    holder = pool.enter()
    with pytest.raises(Shed):
        pool.enter()
    holder.end()
    assert not pool.gate.shedding
    assert pool.enter().state == "holding"


async def test_a_waiter_that_leaves_gives_its_place_to_the_next() -> None:
    pool = limiter(1, 9, 0)
    holder, first, second = pool.enter(), pool.enter(), pool.enter()
    first.end()
    assert pool.depth == 1
    holder.end()
    assert second.state == "holding"


async def test_a_slot_granted_to_a_waiter_that_was_just_cancelled_is_not_lost() -> None:
    pool = limiter(1, 9, 0)
    holder, waiter, next_one = pool.enter(), pool.enter(), pool.enter()
    waiter.granted.cancel()
    holder.end()
    assert waiter.state == "holding"  # it has the slot, whether it looks or not
    waiter.end()
    assert next_one.state == "holding"


async def test_a_heavy_request_takes_as_many_slots_and_is_not_overtaken() -> None:
    pool = limiter(4, 9, 0)
    one, heavy, light = pool.enter(), pool.enter(4), pool.enter()
    assert (heavy.state, light.state) == ("queued", "queued")
    one.end()
    assert (heavy.state, light.state) == ("holding", "queued")
    assert pool.in_flight == 4
    heavy.end()
    assert (light.state, pool.in_flight) == ("holding", 1)


async def test_a_request_heavier_than_the_pool_takes_all_of_it() -> None:
    pool = limiter(2, 9, 0)
    heavy = pool.enter(100)
    assert (heavy.state, pool.in_flight) == ("holding", 2)
    pool.resize(1, 9, 0)
    heavy.end()
    assert pool.in_flight == 0


async def test_when_a_heavy_waiter_leaves_the_next_one_moves_up() -> None:
    pool = limiter(2, 9, 0)
    pool.enter()
    heavy, light = pool.enter(2), pool.enter()
    heavy.end()
    assert light.state == "holding"


async def test_ending_twice_frees_one_slot() -> None:
    pool = limiter(1, 9, 0)
    lease = pool.enter()
    lease.end()
    lease.end()
    assert pool.in_flight == 0


async def test_drain_time_follows_the_measured_service_time() -> None:
    now = 0.0
    pool = Limiter(2, Gate(9, 0), clock=lambda: now)
    for _ in range(100):
        lease = pool.enter()
        now += 4.0
        lease.end()
    assert pool.mean_service_s
    assert pool.mean_service_s == pytest.approx(4.0, rel=0.01)
    assert pool.drain_s() == pytest.approx(2.0, rel=0.01)  # nobody waits: one departure at 2/4 s


@given(drain_s=st.floats(0, 1e6), uniform=st.floats(0, 0.999))
def test_retry_after_is_between_1_and_60_and_never_below_the_drain_time(
    drain_s: float, uniform: float
) -> None:
    seconds = retry_after_s(drain_s, uniform)
    assert 1 <= seconds <= 60
    assert seconds >= min(drain_s, 60)


def test_marks_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="low_water"):
        Gate(high_water=1, low_water=2)


class Pool(RuleBasedStateMachine):
    """Any order of entering, ending, ending twice and being cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool = limiter(3, 5, 2)
        self.live: list[Lease] = []
        self.ended: list[Lease] = []

    def teardown(self) -> None:
        for lease in self.live:
            lease.end()
        assert (self.pool.in_flight, self.pool.depth) == (0, 0)
        self.loop.close()

    @rule(weight=st.integers(1, 5))
    def enter(self, weight: int) -> None:
        async def enter() -> Lease | None:
            try:
                return self.pool.enter(weight)
            except Shed as shed:
                assert shed.drain_s > 0
                assert self.pool.in_flight > 0
                return None

        if lease := self.loop.run_until_complete(enter()):
            self.live.append(lease)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        lease = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        lease.end()
        self.ended.append(lease)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def end_one_again(self, data: st.DataObject) -> None:
        self.ended[data.draw(st.integers(0, len(self.ended) - 1))].end()

    @precondition(lambda self: any(lease.state == "queued" for lease in self.live))
    @rule()
    def cancel_a_waiter(self) -> None:
        next(lease for lease in self.live if lease.state == "queued").granted.cancel()

    @invariant()
    def the_books_balance(self) -> None:
        slots = self.pool.slots
        held = [min(lease.weight, slots) for lease in self.live if lease.state == "holding"]
        assert self.pool.in_flight == sum(held)
        assert self.pool.depth == sum(lease.state == "queued" for lease in self.live)
        assert self.pool.in_flight <= self.pool.slots
        assert self.pool.depth <= self.pool.gate.high_water
        waiting = [lease.weight for lease in self.live if lease.state == "queued"]
        if waiting:  # the first of them does not fit
            assert self.pool.in_flight + min(waiting[0], slots) > slots
        if self.pool.gate.shedding:
            assert self.pool.depth > self.pool.gate.low_water


TestPool = Pool.TestCase


@given(
    depths=st.lists(st.integers(0, 20), max_size=200), marks=st.tuples(*[st.integers(0, 20)] * 2)
)
def test_the_gate_changes_only_at_its_marks(depths: list[int], marks: tuple[int, int]) -> None:
    low, high = sorted(marks)
    gate = Gate(high, low)
    for depth in depths:
        before = gate.shedding
        after = gate.refuses(depth)
        if depth >= high:
            assert after
        elif depth <= low:
            assert not after
        else:
            assert after == before
