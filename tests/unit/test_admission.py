"""The gate and the limiter, without Envoy: hysteresis, order, and slots that are never lost."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.admission import CLASSES, Ask, Gate, Lease, Limiter, Marks, Shed
from extproc.admission.retry_after import RetryAfter

BATCH = CLASSES.index("batch")


def limiter(slots: int, high: int, low: int, hard: int = 1000) -> Limiter:
    return Limiter(slots, Marks(high, low, hard, ""), clock=lambda: 0.0)


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
    assert second.settled.done()


async def test_shedding_starts_at_the_high_mark_and_ends_at_the_low_mark() -> None:
    pool = limiter(1, 3, 1)
    leases = [pool.enter() for _ in range(4)]  # one holds, three wait
    with pytest.raises(Shed):
        pool.enter()
    leases.pop().end()  # two wait: still above the low mark
    with pytest.raises(Shed):
        pool.enter()
    leases.pop().end()  # one waits
    assert not pool.shedding
    assert pool.enter().state == "queued"


async def test_high_water_zero_means_that_nobody_waits() -> None:
    pool = limiter(1, 0, 0)
    holder = pool.enter()
    with pytest.raises(Shed):
        pool.enter()
    holder.end()
    assert not pool.shedding
    assert pool.enter().state == "holding"


async def test_a_waiter_that_leaves_gives_its_place_to_the_next() -> None:
    pool = limiter(1, 9, 0)
    holder, first, second = pool.enter(), pool.enter(), pool.enter()
    first.end()
    assert pool.waiting == 1
    holder.end()
    assert second.state == "holding"


async def test_a_slot_granted_to_a_waiter_that_was_just_cancelled_is_not_lost() -> None:
    pool = limiter(1, 9, 0)
    holder, waiter, next_one = pool.enter(), pool.enter(), pool.enter()
    waiter.settled.cancel()
    holder.end()
    assert waiter.state == "holding"  # it has the slot, whether it looks or not
    waiter.end()
    assert next_one.state == "holding"


async def test_a_heavy_request_takes_as_many_slots_and_is_not_overtaken() -> None:
    pool = limiter(4, 9, 0)
    one, heavy, light = pool.enter(), pool.enter(Ask(4)), pool.enter()
    assert (heavy.state, light.state) == ("queued", "queued")
    one.end()
    assert (heavy.state, light.state) == ("holding", "queued")
    assert pool.in_flight == 4
    heavy.end()
    assert (light.state, pool.in_flight) == ("holding", 1)


async def test_others_pass_a_heavy_request_for_a_while_but_not_for_ever() -> None:
    now = 0.0
    pool = Limiter(4, Marks(99, 50, 200, ""), clock=lambda: now, starving_s=5)
    running = [pool.enter(Ask(tenant="a")) for _ in range(3)]
    heavy = pool.enter(Ask(tenant="heavy", weight=4))
    running.append(pool.enter(Ask(tenant="a")))
    assert [heavy.state, running[-1].state] == ["queued", "holding"]
    now = 5.0
    late = pool.enter(Ask(tenant="a"))
    running[0].end()
    assert late.state == "queued"
    for lease in running[1:]:
        lease.end()
    assert [heavy.state, late.state] == ["holding", "queued"]


async def test_a_heavy_request_pays_for_the_slots_that_idled() -> None:
    pool = Limiter(4, Marks(99, 0, 999, ""), clock=lambda: 0.0, starving_s=0)
    for _ in range(50):
        pool.enter(Ask(tenant="x", tokens=100)).end()
    holders = [pool.enter(Ask(tenant="x", tokens=100)) for _ in range(4)]
    heavy = [pool.enter(Ask(tenant="heavy", weight=4, tokens=4)) for _ in range(9)]
    light = [pool.enter(Ask(tenant="light", tokens=100)) for _ in range(40)]
    served = 0
    for _ in range(40):
        for lease in [one for one in holders + heavy + light if one.state == "holding"]:
            served += lease.tenant == "light"
            lease.end()
        if sum(one.state == "ended" for one in heavy) == 4:
            break
    assert 8 <= served <= 20  # about as many slots as the heavy ones


async def test_a_request_runs_on_one_replica() -> None:
    pool = limiter(8, 9, 0)
    pool.set_slots(8, 4)
    wide, other = pool.enter(Ask(tenant="a", weight=32)), pool.enter(Ask(tenant="b"))
    assert (wide.held, other.state, pool.in_flight) == (4, "holding", 5)


async def test_a_request_heavier_than_the_pool_takes_all_of_it() -> None:
    pool = limiter(2, 9, 0)
    heavy = pool.enter(Ask(100))
    assert (heavy.state, pool.in_flight) == ("holding", 2)
    pool.set_slots(1)
    heavy.end()
    assert pool.in_flight == 0


async def test_when_a_heavy_waiter_leaves_the_next_one_moves_up() -> None:
    pool = limiter(2, 9, 0)
    pool.enter()
    heavy, light = pool.enter(Ask(2)), pool.enter()
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
    pool = Limiter(2, Marks(9, 0, 99, ""), clock=lambda: now)
    for _ in range(100):
        lease = pool.enter()
        now += 4.0
        lease.end()
    assert pool.mean_service_s
    assert pool.mean_service_s == pytest.approx(4.0, rel=0.01)
    assert pool.drain_s() == pytest.approx(2.0, rel=0.01)  # nobody waits: one departure at 2/4 s


@given(drain_s=st.floats(0, 1e6), turn_s=st.floats(1e-3, 100), uniform=st.floats(0, 0.999))
def test_retry_after_is_between_1_and_60_and_never_below_the_drain_time(
    drain_s: float, turn_s: float, uniform: float
) -> None:
    away = RetryAfter()
    for _ in range(20):
        seconds = away.tell(now=0.0, drain_s=drain_s, turn_s=turn_s, uniform=uniform)
        assert 1 <= seconds <= 60
        assert seconds >= min(drain_s, 60)


@pytest.mark.parametrize("clients", [50, 300, 3000])
def test_clients_that_were_shed_together_do_not_come_back_together(clients: int) -> None:
    """16 slots of 1.5 s: about ten a second can be served."""
    away, random = RetryAfter(), Random(7)
    told = [
        away.tell(now=i / 1000, drain_s=0.5, turn_s=1.5 / 16, uniform=random.random())
        for i in range(clients)
    ]
    back = Counter(int(i / 1000 + seconds) for i, seconds in enumerate(told))
    mean = clients / (max(back) - min(back) + 1)
    assert max(back.values()) < 2 * mean
    assert len(back) >= min(clients * 1.5 / 16, 50)


def test_the_moments_given_to_clients_begin_anew_when_they_have_passed() -> None:
    away = RetryAfter()
    for _ in range(500):
        away.tell(now=0.0, drain_s=0.5, turn_s=0.1, uniform=0.5)
    assert away.tell(now=100.0, drain_s=0.5, turn_s=0.1, uniform=0.5) == 1


def test_marks_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="low_water"):
        Gate(high_water=1, low_water=2)


class Pool(RuleBasedStateMachine):
    """Any order of entering, ending, ending twice, being cancelled, and of what others tell."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.pool = Limiter(
            3, Marks(5, 2, 8, ""), clock=lambda: self.now, starving_s=20, most_bytes=1000
        )
        self.most_slots = 3
        self.made: list[Lease] = []
        self.stopped: list[Lease] = []
        self.batch: list[Lease] = []  # that held slots after the last step

    @property
    def live(self) -> list[Lease]:
        return [lease for lease in self.made if lease.state != "ended"]

    def teardown(self) -> None:
        for lease in self.made:
            lease.end()
        assert (self.pool.in_flight, self.pool.waiting, self.pool.waiting_bytes) == (0, 0, 0)
        assert self.pool.audit().drift == 0
        self.loop.close()

    @rule(
        weight=st.integers(1, 5),
        tenant=st.sampled_from("abc"),
        class_index=st.integers(0, 1),
        size=st.integers(0, 400),
        share=st.sampled_from([0.5, 1.0, 4.0]),
    )
    def enter(self, weight: int, tenant: str, class_index: int, size: int, share: float) -> None:
        async def enter() -> None:
            ask = Ask(weight, tenant, share, class_index, weight * 10, size)
            has_room = self.pool.has_room(class_index)
            with suppress(Shed):
                lease = self.pool.enter(ask)
                self.made.append(lease)
                assert lease.state == "holding" or weight > 1 or not has_room

        self.loop.run_until_complete(enter())

    @precondition(lambda self: any(lease.state == "holding" for lease in self.live))
    @rule(data=st.data())
    def admit_one(self, data: st.DataObject) -> None:
        running = [lease for lease in self.live if lease.state == "holding"]
        lease = running[data.draw(st.integers(0, len(running) - 1))]
        if lease not in self.stopped:

            def stop(reason: str) -> None:
                assert reason == "batch"
                assert lease.state == "holding"
                assert lease.class_index == BATCH
                assert lease not in self.stopped, "once"
                assert self.pool.depth > self.pool.foreign_waiting, "nobody needs it"
                self.stopped.append(lease)

            lease.on_stop = stop

    @rule(share=st.sampled_from([0.0, 0.1, 0.5, 0.9]), grace_s=st.sampled_from([None, 2.0]))
    def set_lane(self, share: float, grace_s: float | None) -> None:
        self.pool.set_lane(share, grace_s)

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def end_one_perhaps_again(self, data: st.DataObject) -> None:
        self.made[data.draw(st.integers(0, len(self.made) - 1))].end()

    @precondition(lambda self: any(lease.state == "queued" for lease in self.live))
    @rule()
    def cancel_a_waiter(self) -> None:
        next(lease for lease in self.live if lease.state == "queued").settled.cancel()

    @rule(seconds=st.sampled_from([0.1, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(running=st.integers(0, 6), waiting=st.integers(0, 6))
    def hear_of_the_servers(self, running: int, waiting: int) -> None:
        self.pool.see_servers(running, waiting, self.pool.sequences)

    @rule(slots=st.integers(0, 5))
    def inherit(self, slots: int) -> None:
        self.pool.inherit(slots)

    @rule(slots=st.integers(1, 6))
    def set_slots(self, slots: int) -> None:
        self.pool.set_slots(slots)
        self.most_slots = max(self.most_slots, slots)

    @rule(low=st.integers(0, 4), more=st.integers(0, 4), hard=st.integers(0, 4))
    def set_marks(self, low: int, more: int, hard: int) -> None:
        self.pool.set_marks(Marks(low + more, low, low + more + hard, ""))

    @rule(tokens=st.integers(-50, 50), tenant=st.sampled_from("abc"))
    def correct(self, tokens: int, tenant: str) -> None:
        self.pool.correct(tenant, 1.0, tokens)

    @invariant()
    def the_books_balance(self) -> None:
        audit = self.pool.audit()
        assert (audit.drift, audit.leaked) == (0, ())
        assert self.pool.in_flight == sum(x.held for x in self.live if x.state == "holding")
        assert self.pool.in_flight <= self.most_slots
        assert self.pool.waiting == sum(x.state == "queued" for x in self.live)
        assert 0 <= self.pool.waiting_bytes <= 1000
        assert self.pool.foreign_waiting >= 0
        assert self.pool.inherited >= 0

    @invariant()
    def nobody_waits_beside_a_free_pool(self) -> None:
        pool = self.pool
        if pool.waiting > (pool.batch_waiting if pool.foreign_waiting else 0):
            assert pool.in_flight + pool.inherited > 0

    @invariant()
    def batch_gets_only_what_is_spare(self) -> None:
        batch = [x for x in self.live if x.class_index == BATCH and x.state == "holding"]
        if not all(lease in self.batch for lease in batch):  # some got their slots in this step
            pool = self.pool
            assert pool.slots - pool.in_flight - pool.inherited >= pool.spare
            assert pool.depth == 0, "others wait"
        self.batch = batch

    @invariant()
    def a_gate_sheds_only_above_its_low_mark(self) -> None:
        for index, gate in enumerate(self.pool.gates):
            if gate.shedding:
                depth = self.pool.depth_of(index)
                assert depth > gate.low_water or gate.low_water == gate.high_water


TestPool = Pool.TestCase


@given(
    depths=st.lists(st.integers(0, 20), max_size=200), marks=st.tuples(*[st.integers(0, 20)] * 2)
)
def test_the_gate_changes_only_at_its_marks(depths: list[int], marks: tuple[int, int]) -> None:
    low, high = sorted(marks)
    gate = Gate(high, low)
    for depth in depths:
        before = gate.shedding
        after = gate.refuses(depth, 0.0)
        if depth >= high:
            assert after
        elif depth <= low:
            assert not after
        else:
            assert after == before


def test_shedding_lasts_as_long_as_it_must() -> None:
    gate = Gate(4, 2, dwell_s=10)
    assert gate.refuses(4, 100.0)
    assert gate.refuses(0, 109.0)
    assert not gate.refuses(0, 110.0)
    assert gate.transitions == 2


# --- classes ------------------------------------------------------------------------------------


async def test_batch_sheds_first_and_waits_behind() -> None:
    pool = limiter(1, 4, 2)
    holder = pool.enter()
    batch = [pool.enter(Ask(class_index=BATCH, tenant="b")) for _ in range(2)]
    with pytest.raises(Shed):  # half of the high mark
        pool.enter(Ask(class_index=BATCH, tenant="b"))
    interactive = pool.enter(Ask(tenant="a"))
    holder.end()
    assert (interactive.state, batch[0].state) == ("holding", "queued")


async def test_what_waits_of_batch_counts_for_no_other_gate() -> None:
    pool = limiter(1, 2, 1)
    pool.enter()
    batch = pool.enter(Ask(class_index=BATCH, tenant="b"))
    first, _ = pool.enter(Ask(tenant="a")), pool.enter(Ask(tenant="a"))
    assert (batch.state, batch.position, first.position) == ("queued", 1, 1)
    assert (pool.depth, pool.batch_waiting, pool.depth_of(BATCH)) == (2, 1, 3)
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="a"))
    assert pool.is_full(BATCH) is False


async def test_batch_waits_while_anybody_else_does_however_long_that_takes() -> None:
    now = 0.0
    pool = Limiter(1, Marks(99, 50, 200, ""), clock=lambda: now, starving_s=5)
    holder = pool.enter()
    batch = pool.enter(Ask(class_index=BATCH))
    others = [pool.enter() for _ in range(20)]
    for lease in others:
        now += 10.0
        holder.end()
        holder = lease
        assert (lease.state, batch.state) == ("holding", "queued")
    holder.end()
    assert batch.state == "holding"


async def test_batch_leaves_the_spare_slots_free() -> None:
    pool = limiter(8, 9, 4)
    pool.set_lane(0.25, None)
    batch = [pool.enter(Ask(class_index=BATCH)) for _ in range(7)]
    assert [lease.state for lease in batch] == ["holding"] * 6 + ["queued"]
    assert not pool.has_room(BATCH)
    assert pool.has_room(0)
    others = [pool.enter() for _ in range(2)]
    assert [lease.state for lease in others] == ["holding"] * 2, "they pass the one that waits"
    others.append(pool.enter())
    batch[0].end()  # one is free: whose turn it is
    assert (others[2].state, batch[6].state) == ("holding", "queued")
    others[0].end()
    others[1].end()
    assert batch[6].state == "queued", "two are spare"
    others[2].end()
    assert batch[6].state == "holding"


async def test_batch_may_wait_where_nobody_else_may_and_is_no_ones_reason_to_shed() -> None:
    pool = limiter(4, 0, 0)
    pool.set_lane(0.25, None)
    pool.set_marks(Marks(0, 0, 0, ""), batch=Marks(2, 1, 2, ""))
    batch = [pool.enter(Ask(class_index=BATCH)) for _ in range(5)]
    assert [lease.state for lease in batch[2:]] == ["holding", "queued", "queued"]
    assert pool.is_full(BATCH)
    with pytest.raises(Shed):
        pool.enter(Ask(class_index=BATCH))
    other = pool.enter()
    assert (other.state, other.position) == ("holding", 0)
    with pytest.raises(Shed):
        pool.enter()
    assert pool.drain_s(BATCH) > pool.drain_s()


@pytest.mark.parametrize(
    ("slots", "share", "spare"),
    [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (32, 0.1, 4), (16, 0.1, 2), (10, 0.1, 1), (9, 0, 0)],
)
async def test_spare_is_rounded_up_and_leaves_batch_a_slot(
    slots: int, share: float, spare: int
) -> None:
    pool = limiter(slots, 9, 4)
    pool.set_lane(share, None)
    assert pool.spare == spare


async def test_a_batch_request_wider_than_its_lane_takes_all_of_that() -> None:
    pool = limiter(4, 9, 4)
    pool.set_lane(0.25, None)
    wide = pool.enter(Ask(weight=9, class_index=BATCH))
    assert (wide.state, wide.held) == ("holding", 3)
    assert pool.audit().drift == 0


async def test_batch_waits_for_what_waits_in_the_servers_beside_ours() -> None:
    pool = limiter(4, 9, 4)
    for _ in range(2):
        pool.see_servers(running=0, waiting=1, ours=0)
    batch = pool.enter(Ask(class_index=BATCH))
    assert batch.state == "queued"
    assert pool.enter().state == "holding"
    pool.see_servers(running=1, waiting=0, ours=1)
    assert batch.state == "holding"


# --- a batch answer that makes way ----------------------------------------------------------------


class Stoppable:
    """A pool with `batch` batch answers that run, each of which may be ended."""

    def __init__(self, slots: int, batch: int, grace_s: float = 2.0) -> None:
        self.now = 0.0
        self.pool = Limiter(slots, Marks(9, 4, 99, ""), clock=lambda: self.now)
        self.pool.set_lane(0.0, grace_s)
        self.stopped: list[int] = []
        self.batch = [self.enter(number) for number in range(batch)]

    def enter(self, number: int, weight: int = 1) -> Lease:
        lease = self.pool.enter(Ask(weight=weight, class_index=BATCH))
        assert lease.state == "holding"
        lease.on_stop = lambda reason: self.stopped.append(number)
        return lease


async def test_the_batch_answer_that_began_last_makes_way_one_for_each_that_waits() -> None:
    made = Stoppable(slots=4, batch=4)
    first = made.pool.enter()
    assert made.stopped == [3]
    second = made.pool.enter()
    assert made.stopped == [3, 2]
    made.batch[3].end()
    assert (first.state, second.state, made.stopped) == ("holding", "queued", [3, 2])
    made.batch[2].end()
    assert second.state == "holding"
    made.pool.set_marks(Marks(9, 4, 99, ""))
    assert made.stopped == [3, 2]


async def test_thousands_of_batch_requests_that_wait_cost_the_others_nothing() -> None:
    made = Stoppable(slots=4, batch=4)
    made.pool.set_marks(Marks(9, 4, 99, ""), 0.0, Marks(9000, 4000, 9000, ""))
    for number in range(5000):
        made.pool.enter(Ask(class_index=BATCH, tenant=f"{number}"))
    took: list[float] = []
    for _ in range(9):
        began = time.perf_counter()
        made.pool.enter()
        took.append(time.perf_counter() - began)
    assert sorted(took)[4] < 0.4e-3  # a look at each takes 1 ms


async def test_nothing_is_ended_for_batch_or_where_a_slot_is_free() -> None:
    made = Stoppable(slots=4, batch=3)
    assert made.pool.enter().state == "holding"
    made.pool.enter(Ask(class_index=BATCH))
    assert made.stopped == []


async def test_what_cannot_be_ended_is_passed_over() -> None:
    made = Stoppable(slots=3, batch=3)
    made.batch[2].on_stop = None  # not admitted yet, or of a server that cannot be asked
    made.pool.enter()
    assert made.stopped == [1]


async def test_an_answer_that_does_not_end_is_counted_on_for_the_grace_alone() -> None:
    made = Stoppable(slots=3, batch=3)
    made.pool.enter()
    made.now = 1.9
    made.pool.set_marks(Marks(9, 4, 99, ""))  # as once a second
    assert made.stopped == [2]
    made.now = 2.1
    made.pool.set_marks(Marks(9, 4, 99, ""))
    assert made.stopped == [2, 1]


async def test_a_wide_answer_makes_way_for_several() -> None:
    made = Stoppable(slots=4, batch=1)
    made.enter(1, weight=3)
    for _ in range(3):
        made.pool.enter()
    assert made.stopped == [1]
    made.pool.enter()
    assert made.stopped == [1, 0]
    made.pool.enter()
    assert made.stopped == [1, 0], "there is no more"


async def test_one_that_runs_on_when_others_have_left_is_still_ending() -> None:
    made = Stoppable(slots=2, batch=2)
    made.pool.enter().end()
    made.pool.enter()
    assert made.stopped == [1]


# --- tenants ------------------------------------------------------------------------------------


async def test_tenants_share_by_weight_in_tokens_not_in_requests() -> None:
    pool = limiter(1, 1000, 0)
    holder = pool.enter()
    asks = {
        "short": Ask(tenant="short", tokens=100),
        "long": Ask(tenant="long", tokens=400),
        "heavy": Ask(tenant="heavy", tokens=100, share=2.0),
    }
    waiting = [pool.enter(ask) for _ in range(100) for ask in asks.values()]
    served: Counter[str] = Counter()
    for _ in range(70):
        holder.end()
        holder = next(lease for lease in waiting if lease.state == "holding")
        served[holder.tenant] += holder.ask.tokens
    assert served["short"] == pytest.approx(served["long"], abs=400)
    assert served["heavy"] == pytest.approx(2 * served["short"], abs=400)


async def test_what_was_estimated_too_low_is_paid_later() -> None:
    pool = limiter(1, 1000, 0)
    holder = pool.enter(Ask(tenant="x"))
    waiting = [pool.enter(Ask(tenant=t, tokens=10)) for _ in range(20) for t in "ab"]
    holder.end()
    holder = next(lease for lease in waiting if lease.state == "holding")
    assert holder.tenant == "a"
    pool.correct("a", 1.0, 90)  # it took 100, not 10
    order: list[str] = []
    for _ in range(10):
        holder.end()
        holder = next(lease for lease in waiting if lease.state == "holding")
        order.append(holder.tenant)
    assert order == ["b"] * 10


async def test_a_burst_within_a_tenants_share_of_the_slots_does_not_take_turns_with_a_flood() -> (
    None
):
    pool = limiter(8, 1000, 0)
    flood = [pool.enter(Ask(tenant="flood", tokens=100)) for _ in range(50)]
    mine = [pool.enter(Ask(tenant="mine", tokens=100)) for _ in range(9)]
    for lease in flood[:4]:
        lease.end()
    assert [lease.state for lease in mine].count("holding") == 4
    for lease in flood[4:8]:
        lease.end()
    assert [lease.state for lease in mine].count("holding") < 8


async def test_a_new_weight_counts_at_once() -> None:
    pool = limiter(4, 2, 2)
    pool.enter(Ask(tenant="mine"))
    for _ in range(5):
        pool.enter(Ask(tenant="flood"))
    assert pool.enter(Ask(tenant="mine", share=10)).state == "queued"
    assert pool.enter(Ask(tenant="mine", share=10)).state == "queued"


async def test_who_ignores_retry_after_makes_nobody_else_wait() -> None:
    pool = limiter(4, 0, 0)
    for tenant in ("rude", "polite"):
        pool.enter(Ask(tenant=tenant, weight=2))
    assert max(pool.retry_after_s("rude", 1.0, 0.5) for _ in range(500)) > 50
    assert pool.retry_after_s("polite", 1.0, 0.5) == 1


async def test_idleness_earns_no_credit_beyond_that() -> None:
    pool = limiter(1, 1000, 0)
    for _ in range(50):
        pool.enter(Ask(tenant="busy", tokens=100)).end()
    holder = pool.enter(Ask(tenant="busy", tokens=100))
    waiting = [pool.enter(Ask(tenant=t, tokens=100)) for _ in range(9) for t in ("busy", "new")]
    served: Counter[str] = Counter()
    for _ in range(8):
        holder.end()
        holder = next(lease for lease in waiting if lease.state == "holding")
        served[holder.tenant] += 1
    assert served["busy"] >= 3


async def test_a_flood_does_not_shut_the_gate_for_others() -> None:
    pool = limiter(4, 4, 2)
    flood = [pool.enter(Ask(tenant="flood")) for _ in range(8)]
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="flood"))
    mine = [pool.enter(Ask(tenant="mine")) for _ in range(3)]  # half of 4 slots and 2 places
    assert [lease.state for lease in mine] == ["queued"] * 3
    assert [lease.state for lease in flood[-3:]] == ["ended"] * 3
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="mine"))
    flood[0].end()
    assert mine[0].state == "holding"


async def test_a_tenants_part_of_the_queue_is_counted_in_tokens() -> None:
    pool = limiter(4, 4, 2)
    for _ in range(8):
        pool.enter(Ask(tenant="flood", tokens=10))
    for _ in range(2):
        pool.enter(Ask(tenant="mine", tokens=100))
    with pytest.raises(Shed):  # of two places of 10 tokens
        pool.enter(Ask(tenant="mine", tokens=100))


async def test_with_no_queue_at_all_a_share_is_still_a_share() -> None:
    pool = limiter(4, 0, 0)
    for _ in range(4):
        pool.enter(Ask(tenant="flood"))
    assert pool.enter(Ask(tenant="mine")).state == "queued"
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="flood"))


async def test_what_would_be_shed_is_known_before() -> None:
    pool = limiter(1, 0, 0)
    assert not pool.sheds(Ask(tenant="a"))
    holder = pool.enter(Ask(tenant="a"))
    assert pool.sheds(Ask(tenant="a"))
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="a"))
    pool.set_marks(Marks(0, 0, 9, ""))
    assert pool.sheds(Ask(tenant="a"))
    assert not pool.shedding
    pool.refuse(Ask(tenant="a"))
    assert pool.shedding
    holder.end()
    assert not pool.sheds(Ask(tenant="a"))


async def test_one_tenant_alone_has_no_claim_beyond_the_marks() -> None:
    pool = limiter(4, 2, 1)
    for _ in range(6):
        pool.enter(Ask(tenant="only"))
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="only"))


# --- bounds, the servers' word, the audit ---------------------------------------------------------


async def test_a_flood_of_bytes_gives_way_to_others() -> None:
    pool = Limiter(4, Marks(100, 50, 200, ""), clock=lambda: 0.0, most_bytes=100)
    for _ in range(4):
        pool.enter(Ask(tenant="flood"))
    batch = pool.enter(Ask(tenant="b", class_index=BATCH, size_bytes=50))
    flood = pool.enter(Ask(tenant="flood", size_bytes=50))
    mine = pool.enter(Ask(tenant="mine", size_bytes=90))
    assert [batch.state, flood.state, mine.state] == ["ended", "ended", "queued"]
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="flood", size_bytes=50))
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="other", size_bytes=101))
    assert mine.state == "queued"


async def test_the_queue_is_bounded_in_bytes() -> None:
    pool = Limiter(1, Marks(9, 0, 99, ""), clock=lambda: 0.0, most_bytes=100)
    pool.enter()
    kept = pool.enter(Ask(size_bytes=80))
    with pytest.raises(Shed):
        pool.enter(Ask(size_bytes=30))
    kept.end()
    assert pool.waiting_bytes == 0
    assert pool.enter(Ask(size_bytes=100)).state == "queued"


async def test_the_hard_mark_holds_for_everybody() -> None:
    pool = limiter(16, 0, 0, hard=2)
    for _ in range(16):
        pool.enter(Ask(tenant="flood"))
    for tenant in "ab":
        assert pool.enter(Ask(tenant=tenant)).state == "queued"
    assert pool.is_full(0)
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="c", share=100))


async def test_claims_alone_make_the_queue_only_a_little_longer() -> None:
    pool = limiter(16, 2, 1)
    for _ in range(16):
        pool.enter(Ask(tenant="flood"))
    entered = 0
    for number in range(20):
        with suppress(Shed):
            pool.enter(Ask(tenant=f"t{number}"))
            entered += 1
    assert entered == pool.waiting == 2 + 16 // 8


async def test_many_tenants_of_one_request_each_have_no_claim_on_each_other() -> None:
    pool = limiter(4, 1, 0)
    for number in range(5):
        pool.enter(Ask(tenant=f"t{number}"))
    with pytest.raises(Shed):
        pool.enter(Ask(tenant="another"))


async def test_what_waits_in_the_servers_beside_ours_counts_as_depth() -> None:
    pool = limiter(4, 3, 1)
    for _ in range(2):
        pool.enter()
    pool.see_servers(running=2, waiting=0, ours=pool.sequences)
    assert pool.depth == 0
    pool.see_servers(running=2, waiting=5, ours=pool.sequences)  # five are not ours
    assert pool.depth == 0  # or one of them has just left
    pool.see_servers(running=2, waiting=6, ours=pool.sequences)
    assert pool.depth == 5
    with pytest.raises(Shed):
        pool.enter()
    pool.see_servers(running=2, waiting=1, ours=pool.sequences)
    assert pool.enter().state == "holding"


async def test_our_own_requests_waiting_in_a_server_do_not_count_twice() -> None:
    pool = limiter(8, 3, 1)
    for _ in range(8):
        pool.enter()
    pool.see_servers(running=4, waiting=4, ours=pool.sequences)
    pool.see_servers(running=4, waiting=4, ours=pool.sequences)
    assert pool.depth == 0


async def test_the_sequences_of_a_request_wider_than_the_pool_are_ours() -> None:
    pool = limiter(4, 3, 1)
    pool.enter(Ask(weight=64))
    for _ in range(2):
        pool.see_servers(running=4, waiting=52, ours=pool.sequences)
    assert pool.depth == 0


async def test_what_another_pool_has_on_the_same_servers_is_ours_too() -> None:
    pool = limiter(8, 3, 1)
    for _ in range(2):
        pool.enter()
    for _ in range(2):
        pool.see_servers(running=4, waiting=4, ours=7)
    assert pool.depth == 1


async def test_after_a_restart_the_slots_of_old_requests_are_taken_until_the_servers_are_done() -> (
    None
):
    pool = limiter(4, 9, 0)
    pool.inherit(3)
    assert pool.enter().state == "holding"
    waiting = pool.enter()
    assert waiting.state == "queued"
    pool.see_servers(running=4, waiting=0, ours=pool.sequences)
    assert waiting.state == "queued"
    pool.see_servers(running=2, waiting=0, ours=pool.sequences)  # ours and one old
    assert waiting.state == "queued"  # or one of ours is not there yet
    pool.see_servers(running=2, waiting=0, ours=pool.sequences)
    assert (waiting.state, pool.inherited) == ("holding", 1)
    pool.see_servers(running=9, waiting=0, ours=pool.sequences)  # somebody else's are not old ones
    assert pool.inherited == 1


async def test_fewer_replicas_mean_fewer_slots_and_nothing_is_cut() -> None:
    pool = limiter(4, 9, 0)
    held = [pool.enter() for _ in range(4)]
    pool.set_slots(2)
    waiting = pool.enter()
    held[0].end()
    held[1].end()
    assert (waiting.state, pool.in_flight) == ("queued", 2)
    pool.set_slots(4)
    assert waiting.state == "holding"


async def test_the_age_of_the_oldest_lease_is_known() -> None:
    now = 0.0
    pool = Limiter(2, Marks(9, 0, 99, ""), clock=lambda: now)
    assert pool.oldest_s() is None
    first = pool.enter()
    now = 3.0
    pool.enter()
    now = 5.0
    assert pool.oldest_s() == 5.0
    first.end()
    assert pool.oldest_s() == 2.0


async def test_the_audit_finds_a_lease_that_outlived_its_request() -> None:
    now = 0.0
    pool = Limiter(1, Marks(9, 0, 99, ""), clock=lambda: now)
    lease = pool.enter(Ask(ends_by=10.0, owner="r"))
    now = 14.0
    assert pool.audit().leaked == ()
    now = 16.0
    assert [leak.ask.owner for leak in pool.audit().leaked] == ["r"]
    lease.end()
    assert pool.audit().leaked == ()
