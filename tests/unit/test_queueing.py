"""The theory of `extproc/admission`: known values, properties, extremes. No clock, no chance."""

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.admission.gamma import gamma_cdf, gamma_quantile
from extproc.admission.gated import gated
from extproc.admission.queueing import (
    MOST_SLOTS,
    MOST_WAITING,
    erlang_b,
    erlang_c,
    high_water,
    joined_percentile_s,
    joined_within,
    knee_per_s,
    low_water,
    mean_wait_s,
    slots_needed,
    wait_beyond,
    wait_percentile_s,
)

SLOTS = st.integers(1, 300)
SERVICE_S = st.floats(0.01, 100)
SCV = st.floats(0, 8)
LOAD = st.floats(0.01, 0.99)
LIMIT_S = st.floats(0.01, 100)


@pytest.mark.parametrize(
    ("slots", "offered", "blocked"),
    # Tables of Erlang B, e.g. ITU-D Teletraffic Engineering Handbook: the load for that blocking.
    [(1, 0.0101, 0.01), (5, 1.3608, 0.01), (10, 4.4612, 0.01), (20, 12.031, 0.01)]
    + [(50, 37.901, 0.01), (100, 84.064, 0.01), (10, 6.2157, 0.05), (100, 95.240, 0.05)],
)
def test_erlang_b_is_that_of_the_tables(slots: int, offered: float, blocked: float) -> None:
    assert erlang_b(slots, offered) == pytest.approx(blocked, rel=2e-3)


def test_erlang_c_is_that_of_its_definition() -> None:
    for slots, offered in ((1, 0.7), (2, 1.0), (5, 4.0), (10, 8.0), (40, 39.0)):
        last = offered**slots / math.factorial(slots) * slots / (slots - offered)
        others = sum(offered**k / math.factorial(k) for k in range(slots))
        assert erlang_c(slots, offered) == pytest.approx(last / (others + last), rel=1e-12)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(5, 4.0) == pytest.approx(0.5541, abs=1e-4)


def test_the_mean_wait_is_that_of_the_formulas_for_one_slot() -> None:
    assert mean_wait_s(1, 0.8, 1.0) == pytest.approx(4.0)  # M/M/1: rho / (1 - rho) S
    assert mean_wait_s(1, 0.8, 1.0, scv=0.0) == pytest.approx(2.0)  # M/D/1: half
    assert mean_wait_s(1, 0.8, 1.0, scv=3.0) == pytest.approx(8.0)  # Pollaczek-Khinchine
    assert mean_wait_s(1, 1.0, 1.0) == math.inf
    assert wait_beyond(1, 0.8, 1.0, 5.0) == pytest.approx(0.8 * math.exp(-1))


@pytest.mark.parametrize("x", [0.1, 1.0, 3.0, 10.0, 40.0, 300.0])
def test_the_gamma_distribution_counts_poisson_events(x: float) -> None:
    for n in (1, 2, 5, 11, 40, 280):
        fewer = sum(math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(n))
        assert gamma_cdf(n, x) == pytest.approx(1 - fewer, abs=1e-11)


def test_the_gamma_distribution_holds_for_shapes_between_and_far_out() -> None:
    assert gamma_cdf(0.5, 2.0) == pytest.approx(math.erf(math.sqrt(2.0)), abs=1e-12)
    assert gamma_cdf(0.5, 0.1) == pytest.approx(math.erf(math.sqrt(0.1)), abs=1e-12)
    assert gamma_cdf(1e6, 1e6) == pytest.approx(0.5, abs=1e-3)
    assert (gamma_cdf(1e6, 1.0), gamma_cdf(1.0, 1e9), gamma_cdf(3.0, math.inf)) == (0, 1, 1)
    assert gamma_quantile(1.0, 0.99) == pytest.approx(math.log(100))


def test_the_marks_are_those_of_poisson_tables() -> None:
    """P(at most m - 1 departures within the limit) is at most 1%."""
    assert high_water(16, 6.3, 1.0, 1.0, 0.99) == 0  # 2.5 departures: none in 7.9% of the cases
    assert high_water(16, 1.5, 1.0, 1.0, 0.99) == 4  # 10.7: up to 3 in 0.6%, up to 4 in 1.8%
    assert high_water(64, 6.3, 1.0, 1.0, 0.99) == 4  # 10.2: up to 3 in 0.9%
    assert high_water(1, 1.0, 1.0, 1000.0, 0.5) == 1000
    assert [low_water(high) for high in (0, 1, 2, 5)] == [0, 0, 1, 2]


def test_few_departures_of_many_slots_come_as_chance_whatever_the_service() -> None:
    exponential = joined_percentile_s(0, 200, 1.0, 0.99)
    for scv in (0.0, 0.5, 4.0):
        assert joined_percentile_s(0, 200, 1.0, 0.99, scv) == pytest.approx(exponential, rel=0.02)
    # In the long run it matters: variance of 2,000 departures of 2 slots.
    long_run = [joined_percentile_s(1999, 2, 1.0, 0.99, scv) - 1000 for scv in (0.25, 1.0, 4.0)]
    assert long_run[0] == pytest.approx(long_run[1] / 2, rel=0.05)
    assert long_run[2] == pytest.approx(long_run[1] * 2, rel=0.05)


@given(SLOTS, SERVICE_S, SCV, LOAD, LOAD, LIMIT_S)
def test_more_load_waits_longer(
    slots: int, service_s: float, scv: float, one: float, other: float, limit_s: float
) -> None:
    less, more = (load * slots / service_s for load in sorted((one, other)))
    for wait in (mean_wait_s, lambda *of: wait_percentile_s(*of[:3], 0.99, of[3])):
        assert wait(slots, less, service_s, scv) <= wait(slots, more, service_s, scv) * (1 + 1e-9)
    late = [wait_beyond(slots, rate, service_s, limit_s, scv) for rate in (less, more)]
    assert 0 <= late[0] <= late[1] * (1 + 1e-9) <= 1 + 1e-9


@given(st.integers(1, 60), st.integers(0, 60), SERVICE_S, SCV, LIMIT_S)
def test_more_slots_wait_less_and_more_before_one_waits_longer(
    slots: int, behind: int, service_s: float, scv: float, limit_s: float
) -> None:
    here = joined_within(behind, slots, service_s, limit_s, scv)
    assert 0 <= here <= 1
    assert joined_within(behind + 1, slots, service_s, limit_s, scv) <= here + 1e-9
    assert joined_within(behind, slots, service_s, limit_s * 1.5, scv) >= here - 1e-9
    wait_s, longer_s, more_slots_s = (
        joined_percentile_s(behind + more, slots + added, service_s, 0.99, scv)
        for more, added in ((0, 0), (1, 0), (0, 1))
    )
    assert more_slots_s < wait_s < longer_s
    assert joined_within(behind, slots, service_s, wait_s, scv) == pytest.approx(0.99, abs=1e-6)


@given(SLOTS, SERVICE_S, SCV, LIMIT_S, st.floats(0.5, 0.999))
def test_the_mark_is_the_last_that_fits(
    slots: int, service_s: float, scv: float, limit_s: float, percentile: float
) -> None:
    mark = high_water(slots, service_s, scv, limit_s, percentile)
    if mark:
        assert joined_within(mark - 1, slots, service_s, limit_s, scv) >= percentile
    if mark < MOST_WAITING:
        assert joined_within(mark, slots, service_s, limit_s, scv) < percentile


@given(SLOTS, SERVICE_S, SCV, LIMIT_S)
def test_at_the_knee_the_percentile_of_the_wait_is_the_limit(
    slots: int, service_s: float, scv: float, limit_s: float
) -> None:
    knee = knee_per_s(slots, service_s, scv, limit_s, 0.99)
    assert 0 < knee * service_s < slots
    assert wait_percentile_s(slots, knee, service_s, 0.99, scv) <= limit_s * (1 + 1e-6)
    above = min(knee * (1 + 1e-6), slots / service_s * (1 - 1e-12))
    assert wait_beyond(slots, above, service_s, limit_s, scv) > 0.01 * (1 - 1e-3)


@given(st.floats(0.01, 200), SERVICE_S, SCV, LIMIT_S)
def test_one_slot_less_than_needed_is_too_few(
    arrivals_per_s: float, service_s: float, scv: float, limit_s: float
) -> None:
    needed = slots_needed(arrivals_per_s, service_s, scv, limit_s, 0.99)
    assert wait_beyond(needed, arrivals_per_s, service_s, limit_s, scv) <= 0.0100001
    if needed > 1:
        fewer = wait_beyond(needed - 1, arrivals_per_s, service_s, limit_s, scv)
        assert fewer > 0.01


def test_without_a_queue_the_chain_is_erlangs_loss_system() -> None:
    pool = gated(16, 3.0, 6.3, 1.0, (0, 0))
    assert pool.shed == pytest.approx(erlang_b(16, 18.9))
    assert (pool.in_time + pool.shed, pool.late) == (pytest.approx(1), 0)


def test_with_an_endless_queue_the_chain_is_erlang_c() -> None:
    """Less than full: hardly anybody is shed, and as many are late as M/M/c says."""
    pool = gated(16, 0.8 * 16 / 1.5, 1.5, 1.0, (400, 200))
    assert pool.shed < 1e-12
    assert pool.late == pytest.approx(wait_beyond(16, 0.8 * 16 / 1.5, 1.5, 1.0), rel=1e-9)
    assert pool.utilisation == pytest.approx(0.8)


@example(1, 1.0, 0.0, 42.0, 1.0, 190, 1.0)  # a factor of 1e308 between the states
@example(120, 1.0, 0.0, 0.001, 1.0, 0, 0.0)  # all slots busy with a probability of 1e-309
@given(SLOTS, SERVICE_S, SCV, st.floats(0, 50), LIMIT_S, st.integers(0, 200), st.floats(0, 1))
def test_the_shares_of_the_chain_are_one_whole(
    slots: int,
    service_s: float,
    scv: float,
    load: float,
    limit_s: float,
    high: int,
    low_share: float,
) -> None:
    marks = high, int(high * low_share)
    pool = gated(slots, load * slots / service_s, service_s, limit_s, marks, scv)
    assert pool.in_time + pool.late + pool.shed == pytest.approx(1)
    assert min(pool.in_time, pool.late, pool.shed) >= 0
    assert 0 <= pool.utilisation <= min(load, 1) + 1e-9


ENORMOUS = (1e-300, 1e300)


@pytest.mark.parametrize("service_s", ENORMOUS)
@pytest.mark.parametrize("scv", [0.0, 1e300])
@pytest.mark.parametrize("limit_s", [0.0, *ENORMOUS])
def test_nothing_overflows(service_s: float, scv: float, limit_s: float) -> None:
    for slots in (1, 7, 500):
        mark = high_water(slots, service_s, scv, limit_s, 0.99)
        assert 0 <= mark <= MOST_WAITING
        knee = knee_per_s(slots, service_s, scv, limit_s, 0.99)
        assert 0 <= knee * service_s <= slots
        for load in ENORMOUS[0], 0.5, 1.0, 1e8:
            rate = load * slots / service_s
            if math.isinf(rate):
                continue
            for wait_s in (
                mean_wait_s(slots, rate, service_s, scv),
                wait_percentile_s(slots, rate, service_s, 0.99, scv),
            ):
                assert wait_s >= 0
            assert 0 <= wait_beyond(slots, rate, service_s, limit_s, scv) <= 1
            pool = gated(slots, rate, service_s, limit_s, (500, 20), scv)
            assert pool.in_time + pool.late + pool.shed == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: mean_wait_s(0, 1, 1), "slots must be between 1 and 100,000, got 0"),
        (lambda: erlang_c(MOST_SLOTS + 1, 1), "slots must be"),
        (lambda: erlang_c(1, -1), "offered must be at least 0"),
        (lambda: mean_wait_s(1, 1, 0), "mean_service_s must be above 0 and finite, got 0"),
        (lambda: mean_wait_s(1, 1, math.nan), "mean_service_s"),
        (lambda: mean_wait_s(1, 1, 1, scv=-1), "scv must be at least 0"),
        (lambda: mean_wait_s(1, 1e200, 1e200), "arrivals_per_s \\* mean_service_s"),
        (lambda: high_water(1, 1, 1, math.inf, 0.99), "wait_limit_s"),
        (lambda: high_water(1, 1, 1, 1, 1.0), "percentile must be at least 0.5 and below 1"),
        (lambda: high_water(1, 1, 1, 1, 99), "percentile"),
        (lambda: joined_within(-1, 1, 1, 1), "behind"),
        (lambda: slots_needed(1e6, 60, 1, 1, 0.99), "is a unit wrong"),
        (lambda: gated(1, 1, 1, 1, (1, 2)), "0 <= low_water <= high_water"),
        (lambda: gamma_cdf(0, 1), "shape above 0"),
        (lambda: gamma_quantile(1, 1), "between 0 and 1"),
    ],
)
def test_nonsense_is_refused_with_the_name_of_the_number(call: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()
