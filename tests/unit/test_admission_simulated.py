"""What the admission room promises, proved on the real limiter in virtual time. Seeded.

Numbers in comments were measured with longer runs than a test can afford; the bounds in the
assertions leave room for the statistical error of the runs here. `make soak` runs all cases.
"""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from extproc.admission import CLASSES
from extproc.admission.queueing import high_water, joined_percentile_s
from tests.sampling import cases
from tests.unit.simulated_pool import (
    TOKENS_PER_S,
    Clients,
    Draw,
    Pool,
    Seen,
    Wanted,
    lognormal,
    service,
)
from tests.unit.test_queueing_simulated import share_in_time

BATCH = CLASSES.index("batch")
SOME_MARKS = (0, 1, 2, 4, 6, 10, 16, 28, 48, 100)


def clients(
    load: float, slots: int, mean_s: float, scv: float = 1, draw: Draw | None = None
) -> Clients:
    """`load` times what the pool can serve."""
    return Clients(load * slots / mean_s, mean_s, draw or service(scv, random.Random(6)))


def in_time(seen: Sequence[Seen], limit_s: float) -> int:
    return sum(request.wait_s is not None and request.wait_s <= limit_s for request in seen)


def shed(seen: Sequence[Seen]) -> float:
    """Share that got no slot."""
    return sum(request.wait_s is None for request in seen) / len(seen)


def p99_s(seen: Sequence[Seen], *, of_queued: bool = False) -> float:
    waits = sorted(
        request.wait_s
        for request in seen
        if request.wait_s is not None and (request.queued or not of_queued)
    )
    return waits[int(0.99 * len(waits))]


# --- hysteresis -----------------------------------------------------------------------------------


async def transitions(
    slots: int, mean_s: float, load: float, marks: tuple[Wanted, Wanted], seconds: float
) -> int:
    pool = Pool(slots, *marks)
    pool.run([clients(load, slots, mean_s)], seconds)
    return pool.transitions


# Measured: 64/63 over 64/32 33 times at 1.2x and 32 times at 3x; 64/64 more still.
@pytest.mark.parametrize(("load", "seconds"), cases([(3.0, 300)], [(1.2, 1500)]))
@pytest.mark.parametrize("one_threshold", [(64, 63), (64, 64)])
async def test_two_marks_change_their_mind_far_less_often_than_one_threshold(
    load: float, seconds: float, one_threshold: tuple[int, int]
) -> None:
    two = await transitions(16, 1.5, load, (64, 32), seconds)
    one = await transitions(16, 1.5, load, one_threshold, seconds)
    assert two > 50
    assert one / two >= (64 - 32) / 2


@pytest.mark.parametrize(("slots", "load"), cases([(64, 1.2), (16, 3.0)], [(64, 3.0), (16, 1.2)]))
async def test_so_do_the_marks_of_auto(slots: int, load: float) -> None:
    high = high_water(slots, 1.5, 1, 1.0, 0.99)
    auto = await transitions(slots, 1.5, load, ("auto", "auto"), 200)
    one = await transitions(slots, 1.5, load, (high, high - 1), 200)
    assert auto > 30
    assert one / auto >= (high - high // 2) / 2


# --- goodput --------------------------------------------------------------------------------------
# Goodput of auto against the best of a sweep of fixed marks, by simulation (20,000 to 60,000
# arrivals, loads 1, 1.2 and 3, scv 0.25, 1 and 4, from the same start): 16 slots of 6.3 s within
# 3%, 16 x 1.5 s 4%, 64 x 6.3 s 6%, 64 x 1.5 s 3%, 8 x 0.5 s 6%, and 4 slots of 2 s with a limit of
# 3 s 8%: few slots, where a queue longer than what the 99th percentile of its last place allows
# serves more in time. Constant service alone breaks it, in one case: 64 slots of 1.5 s at 3x, -58%.
# There all slots end together, so that who queues early waits for nearly a whole service time.
POOLS = cases([(16, 1.5, 1.0), (64, 6.3, 1.0)], [(16, 6.3, 1.0), (64, 1.5, 1.0), (4, 2.0, 3.0)])


@pytest.mark.parametrize(("slots", "mean_s", "limit_s"), POOLS)
@pytest.mark.parametrize(("load", "scv"), [(1.2, 0.25), (3.0, 4)])
async def test_auto_marks_serve_nearly_as_many_in_time_as_the_best_fixed_marks(
    slots: int, mean_s: float, limit_s: float, load: float, scv: float
) -> None:
    requests = 8000
    pool = Pool(slots, slo_s=limit_s)
    pool.run([clients(load, slots, mean_s, scv)], 1.1 * requests * mean_s / (load * slots))
    auto = in_time(pool.seen[:requests], limit_s) / requests
    best = max(
        share_in_time(
            slots,
            load,
            service(scv, random.Random(6)),
            limit_s / mean_s,
            (high, high // 2),
            requests,
        )
        for high in SOME_MARKS
    )
    assert auto >= 0.9 * best


async def after_answers_became_longer(
    slots: int, mean_s: float, limit_s: float, load: float, scv: float, high: Wanted
) -> tuple[int, int]:
    """Requests in time within a minute after the service time doubled to `mean_s`, and later."""
    pool = Pool(slots, high=high, slo_s=limit_s)
    draw = service(scv, random.Random(6))
    pool.run([clients(load, slots, mean_s / 2, draw=draw)], 60 + 5 * mean_s)
    longer = [clients(load, slots, mean_s, draw=draw)]
    first = pool.run(longer, 60)
    later = pool.run(longer, 4000 * mean_s / (load * slots))
    return in_time(first, limit_s), in_time(later, limit_s)


# Measured for five pools and three loads and services, over the best of 0, 1, 2, 4, 8, 16, 32:
# 0.95 to 1.04 in the first minute, 0.93 to 1.01 later.
@pytest.mark.parametrize(
    ("slots", "mean_s", "limit_s", "load", "scv"),
    cases(
        [(16, 3.0, 1.0, 3.0, 4), (4, 4, 3, 3.0, 1)],
        [(64, 12.6, 1.0, 1.2, 1), (64, 3.0, 1.0, 3.0, 0.25)],
    ),
)
async def test_auto_marks_follow_when_answers_become_longer(
    slots: int, mean_s: float, limit_s: float, load: float, scv: float
) -> None:
    at = (slots, mean_s, limit_s, load, scv)
    first, later = await after_answers_became_longer(*at, "auto")
    fixed = [await after_answers_became_longer(*at, high) for high in (0, 1, 2, 4, 8)]
    assert first >= 0.85 * max(best for best, _ in fixed)
    assert later >= 0.9 * max(best for _, best in fixed)


# Over the best fixed marks, from the second mean service time on: 0.99 and 0.85 to 1. The mean of
# the ended answers alone, which are the short ones, gave a high mark of 209 (28 is right) and 0.10.
@pytest.mark.parametrize(("slots", "mean_s", "high"), [(64, 6.3, 4), (64, 1.5, 28), (16, 1.5, 4)])
async def test_a_pool_that_is_flooded_from_its_first_second_has_sane_marks(
    slots: int, mean_s: float, high: int
) -> None:
    pool = Pool(slots)
    load = [clients(3, slots, mean_s)]
    pool.run(load, mean_s)
    seen = pool.run(load, 3 * mean_s)
    pool.run(load, 2)
    assert max(pool.highs) <= 2 * high
    assert in_time(seen, 1.0) >= 0.7 * slots * 3


# --- the wait's percentile ------------------------------------------------------------------------


async def queued_p99_s(
    slots: int, mean_s: float, load: float, draw: Draw, high: Wanted = "auto"
) -> float:
    pool = Pool(slots, high=high)
    seen = pool.run([clients(load, slots, mean_s, draw=draw)], 5000 * mean_s / slots)
    return p99_s(seen, of_queued=True)


# Measured (20,000 arrivals): 0.7 to 0.8 s at 1x, 0.8 to 1.0 s at 3x; the marks follow noisy
# measurements, yet the last place is not always taken. Four slots with a limit of 3 s and scv 4:
# 3.0 to 3.5 s, where the gamma distribution is known to be too short.
@pytest.mark.parametrize(("slots", "mean_s"), cases([(64, 6.3), (8, 0.5)], [(16, 1.5), (64, 1.5)]))
@pytest.mark.parametrize(
    ("load", "draw"),
    [
        (1.2, service(0.5, random.Random(6))),
        (3.0, service(1, random.Random(6))),
        (3.0, service(4, random.Random(6))),
        (3.0, lognormal(2, random.Random(6))),
    ],
)
async def test_who_queues_waits_no_longer_than_the_slo_says(
    slots: int, mean_s: float, load: float, draw: Draw
) -> None:
    assert await queued_p99_s(slots, mean_s, load, draw) <= 1.1


@pytest.mark.parametrize(("slots", "mean_s"), [(16, 1.5), (64, 6.3), (8, 0.5)])
async def test_marks_set_by_the_mean_wait_would_miss_it(slots: int, mean_s: float) -> None:
    by_mean = int(slots / mean_s)  # so many departures take 1 s on average
    draw = service(1, random.Random(6))
    assert await queued_p99_s(slots, mean_s, 3.0, draw, by_mean) > 1.3


# --- fairness -------------------------------------------------------------------------------------


async def beside_a_flood(
    share: float, flood_s: float, own_s: float, high: Wanted, load: float
) -> tuple[list[Seen], list[Seen]]:
    """A tenant's requests when it runs alone on its share of 16 slots, and when another tenant
    sends five times what all 16 can serve. `load`: of its share."""
    slots, seconds = 16, 500 * max(flood_s, own_s) / 1.5 * min(flood_s / own_s, 1)
    own_slots = round(slots * share / (1 + share))
    rate = load * own_slots / own_s
    mine = Clients(rate, own_s, service(1, random.Random(3)), "mine", share)
    alone = Pool(own_slots, high=high).run([mine], 2 * seconds)

    pool = Pool(slots, high=high)
    mine = Clients(rate, own_s, service(1, random.Random(3)), "mine", share)
    flood = Clients(5 * slots / flood_s, flood_s, service(1, random.Random(4)), "flood")
    seen = pool.run([mine, flood], seconds)
    assert pool.idled == 0
    return alone, [request for request in seen if request.clients.tenant == "mine"]


# p99 of the wait, alone and beside the flood, and share shed, alone and beside it, at 0.9 of the
# share: 1:1 auto 0.54 0.62 s, 14 16%; 8 2.04 0.75 s, 5 12%; 64 5.9 3.6 s, 0 1%. 3:1 auto 0.59
# 0.67 s, 9 15%; 64 3.8 2.9 s, 0 1%. Flood of requests a third as long, auto 0.53 0.47 s, 14 14%;
# a fifth as long 0.53 0.76 s, 14 16%; five times as long 0.61 0.55 s, 2 12%.
@pytest.mark.parametrize(
    ("share", "flood_s", "own_s", "high", "more_shed"),
    cases(
        [(1, 1.5, 1.5, "auto", 0.06), (3, 1.5, 1.5, 64, 0.1), (1, 0.5, 1.5, "auto", 0.1)],
        [
            (1, 1.5, 1.5, 8, 0.1),
            (1, 1.5, 1.5, 64, 0.1),
            (3, 1.5, 1.5, "auto", 0.1),
            (1, 1.5, 0.3, "auto", 0.15),
        ],
    ),
)
async def test_a_flood_leaves_another_tenant_the_waits_of_its_own_share_of_the_slots(
    share: float, flood_s: float, own_s: float, high: Wanted, more_shed: float
) -> None:
    alone, beside = await beside_a_flood(share, flood_s, own_s, high, 0.9)
    assert p99_s(beside) <= 1.5 * p99_s(alone)
    assert shed(beside) <= shed(alone) + more_shed


# Alone, a tenant that uses little of its share hardly waits, and without a queue never. Beside a
# flood all slots are busy, and none is kept free for it: it waits for the next to end, or, having
# come with others of its own, for one of the next. Measured over 1.5 times its wait alone: 1 to 7
# turns (a turn: service time / slots); three take 8.4 at the 99th percentile.
@pytest.mark.parametrize(
    ("share", "high", "load"),
    cases(
        [(1, "auto", 0.7), (3, "auto", 0.5), (1, 0, 0.9)],
        [(1, "auto", 0.5), (3, "auto", 0.7), (1, 0, 0.5), (3, 0, 0.9)],
    ),
)
async def test_or_of_few_turns_of_the_slots_where_it_would_hardly_wait(
    share: float, high: Wanted, load: float
) -> None:
    alone, beside = await beside_a_flood(share, 1.5, 1.5, high, load)
    three_turns_s = joined_percentile_s(2, 16, 1.5, 0.99)
    assert p99_s(beside) <= 1.5 * p99_s(alone) + three_turns_s
    assert shed(beside) <= shed(alone) + 0.1


# Measured: 2.7 to 3.3. With a claim to slots alone, and no credit, it was 1.6 to 2.0: the heavier
# tenant was shed before its queue could use its weight.
@pytest.mark.parametrize(("mine_s", "other_s"), [(1.5, 1.5), (0.5, 2.0)])
@pytest.mark.parametrize(("mine_wrong", "other_wrong"), [(1, 1), (2, 0.5), (0.5, 2)])
async def test_tokens_are_shared_by_weight_though_the_estimates_are_wrong(
    mine_s: float, other_s: float, mine_wrong: float, other_wrong: float
) -> None:
    pool = Pool(16, high=8)
    chance = random.Random(6)
    mine = Clients(32 / mine_s, mine_s, service(1, chance), "mine", 3, estimate=mine_wrong)
    other = Clients(32 / other_s, other_s, service(1, chance), "other", 1, estimate=other_wrong)
    served: Counter[str] = Counter()
    for request in pool.run([mine, other], 250):
        if request.wait_s is not None:
            of = request.clients
            served[of.tenant] += int(of.mean_service_s * TOKENS_PER_S)
    assert served["mine"] / served["other"] == pytest.approx(3, rel=0.17)


# --- classes, and work that is not left lying -----------------------------------------------------


async def beside_batch(
    slots: int, load: float, spare: float, stops_s: float | None
) -> tuple[Pool, list[Seen], list[Seen]]:
    """Interactive requests at this load, 1.5 s each, and twice as much batch of 6 s as the pool
    could serve."""
    pool = Pool(slots, high=64, spare=spare, stops_s=stops_s)
    batch = Clients(2 * slots / 6, 6.0, service(1, random.Random(4)), "b", class_index=BATCH)
    seen = pool.run([clients(load, slots, 1.5), batch], 600)
    mine = [request for request in seen if request.clients is not batch]
    return pool, mine, [request for request in seen if request.clients is batch]


def share_that_waits(seen: Sequence[Seen]) -> float:
    return sum(request.wait_s is None or request.wait_s > 0 for request in seen) / len(seen)


# The share of interactive requests that have to wait at all, measured without spare slots and with
# a tenth: 0.995 and 0.36; 0.995 and 0.02; 0.995 and 0.27. What is left is bursts of more than are
# spare. p99 of the wait: 2.6 and 1.4 s; 0.6 and 0.06 s; 1.0 and 0.6 s. Batch still had 9.7, 40 and
# 22 of the slots.
@pytest.mark.parametrize(
    ("slots", "load", "waiting", "for_batch"),
    [(16, 0.3, 0.45, 9), (64, 0.3, 0.05, 38), (64, 0.6, 0.35, 20)],
)
async def test_spare_slots_keep_most_others_from_waiting_for_batch(
    slots: int, load: float, waiting: float, for_batch: float
) -> None:
    _, without, _ = await beside_batch(slots, load, 0.0, None)
    _, beside, batch = await beside_batch(slots, load, 0.1, None)
    assert share_that_waits(without) > 0.95
    assert share_that_waits(beside) < waiting
    assert p99_s(beside) < 0.75 * p99_s(without)
    assert sum(request.wait_s is not None for request in batch) * 6.0 / 600 > for_batch


# Measured: a p99 wait of 0.10, 0.02 and 0.08 s; as many answers were ended as 0.97, 0.75 and 0.67
# of the requests that had to wait.
@pytest.mark.parametrize(("slots", "load"), [(16, 0.3), (64, 0.3), (64, 0.6)])
async def test_where_batch_answers_are_ended_others_wait_for_that_alone(
    slots: int, load: float
) -> None:
    ends_in_s = 0.1
    pool, beside, _ = await beside_batch(slots, load, 0.1, ends_in_s)
    assert p99_s(beside) <= ends_in_s + 0.001
    assert 0 < pool.stopped <= sum(request.queued for request in beside)
    assert pool.limiter.audit().drift == 0


@pytest.mark.parametrize(("high", "weight"), [("auto", 1), (0, 1), (64, 1), (8, 4)])
async def test_no_slot_idles_while_somebody_waits_who_fits(high: Wanted, weight: int) -> None:
    pool = Pool(16, high=high, starving_s=5)
    draw = service(1, random.Random(6))
    heavy = Clients(8 / weight, 1.5, draw, "heavy", weight=weight)
    batch = Clients(4, 1.5, draw, "batch", class_index=BATCH)
    seen = pool.run([clients(1, 16, 1.5), heavy, batch], 200)
    assert sum(request.queued for request in seen) > 50
    assert pool.idled == 0


# --- clients that were shed -----------------------------------------------------------------------


# Measured: 1.2 to 1.7 times the mean at first; later up to 1.9 times that of the half minute around
# it, and 2.4 where all is over in ten seconds (turns of 10 ms).
@pytest.mark.parametrize(
    ("slots", "mean_s", "load"),
    [(16, 1.5, 0.8), (16, 1.5, 3.0), (16, 6.3, 3.0), (16, 0.16, 0.8), (16, 48.0, 0.8), (1, 3, 3.0)],
)
async def test_clients_that_obey_retry_after_come_back_spread_out(
    slots: int, mean_s: float, load: float
) -> None:
    pool = Pool(slots)
    pool.run([clients(1.1, slots, mean_s)], max(20 * mean_s, 30))
    began_s = pool.now
    pool.burst(Clients(0, mean_s, service(1, random.Random(7)), "b", come_back=True), 500, 1.0)
    seen = [r for r in pool.run([clients(load, slots, mean_s)], 180) if r.tries > 1]

    first = Counter(int(r.at_s - began_s) for r in seen if r.tries == 2)
    assert first.total() > 300
    assert max(first.values()) < 2 * first.total() / (max(first) - min(first) + 1)
    # Also of those who are shed again and again, if not as evenly: what is shed of the base load
    # has moments too. (Where fewer than 5 come in a second, chance alone makes up more.)
    came = Counter(int(r.at_s - began_s) for r in seen)
    for second, clients_back in came.items():
        around = range(max(second - 15, min(came)), min(second + 15, max(came)) + 1)
        mean = sum(came[second] for second in around) / len(around)
        assert clients_back < 2.5 * max(mean, 5)


# --- after overload -------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "mean_s"), [(16, 1.5), (16, 6.3), (64, 1.5), (64, 6.3)])
async def test_two_seconds_after_overload_nobody_waits(slots: int, mean_s: float) -> None:
    for seed in range(3):
        pool = Pool(slots, seed=seed)
        pool.run([clients(3.0, slots, mean_s)], 60)
        pool.run([clients(0.3, slots, mean_s)], 2)
        after = pool.run([clients(0.3, slots, mean_s)], 20)
        assert [request.wait_s for request in after] == [0.0] * len(after)


async def test_a_queue_set_by_habit_takes_longer() -> None:
    pool = Pool(16, high=64)
    pool.run([clients(3.0, 16, 1.5)], 60)
    pool.run([clients(0.3, 16, 1.5)], 2)
    assert max(r.wait_s or 0 for r in pool.run([clients(0.3, 16, 1.5)], 5)) > 0.5
