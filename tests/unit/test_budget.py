"""The false-hit budget: what it notices in how many checks, and what it leaves alone."""

import random

import numpy as np
import pytest

from extproc.cache.semantic.budget import FalseHitBudget

BUDGET = 0.01


def trips_after(budget: FalseHitBudget, rate: float, checks: int, draw: random.Random) -> int:
    """The check with which the scope went off; one more than `checks` if it did not."""
    for n in range(1, checks + 1):
        if budget.told("s", agreed=draw.random() >= rate, now=0):
            return n
    return checks + 1


def share_off(rate: float, checks: int, times: int, good_before: int = 0) -> float:
    draw, off = random.Random(7), 0
    for _ in range(times):
        budget = FalseHitBudget(BUDGET)
        for _ in range(good_before):
            budget.told("s", agreed=True, now=0)
        off += trips_after(budget, rate, checks, draw) <= checks
    return off / times


def exactly(rate: float, checks: int, start: float = 0.0) -> float:
    """The probability to be off within so many checks: the sum's chain on a grid of a twentieth of
    its small step."""
    test = FalseHitBudget(BUDGET)._test
    grid = -test.down / 20
    size, up = round((test.limit + 3) / grid) + 1, round(test.up / grid)
    at, off = np.zeros(size), 0.0
    at[round((start + 3) / grid)] = 1
    for _ in range(checks):
        agreed, other = at * (1 - rate), at * rate
        after = np.zeros(size)
        after[: size - 20] += agreed[20:]
        after[0] += agreed[:20].sum()
        after[up:] += other[: size - up]
        off += other[size - up :].sum()
        at = after
    return off


def test_ten_percent_of_false_hits_are_noticed_within_200_checks() -> None:
    assert exactly(0.10, 200) > 0.999
    assert exactly(0.10, 200, start=-3) > 0.999  # after the best history
    assert share_off(0.10, 200, times=500) > 0.99
    assert share_off(0.10, 200, times=500, good_before=5000) > 0.99


def test_five_times_the_budget_is_noticed_within_300_checks() -> None:
    assert exactly(0.05, 200) == pytest.approx(0.951, abs=0.005)
    assert exactly(0.05, 200, start=-3) == pytest.approx(0.880, abs=0.005)
    assert exactly(0.05, 300) > 0.99
    assert share_off(0.05, 300, times=500) > 0.975


def test_half_the_budget_is_left_alone_for_2000_checks() -> None:
    assert exactly(0.005, 2000) < 0.01
    assert (
        share_off(0.005, 2000, times=400) < 0.025
    )  # of 400: 0.01 would give 4, 10 is its 1 in 350


@pytest.mark.parametrize("budget", [0.02, 0.05, 0.1])
def test_half_of_a_larger_budget_is_left_alone_too(budget: float) -> None:
    draw, off = random.Random(3), 0
    for _ in range(200):
        off += trips_after(FalseHitBudget(budget), budget / 2, 2000, draw) <= 2000
    assert off <= 7  # of 200: 0.01 would give 2, more than 7 is 1 in 1,000


def test_one_disagreement_is_no_proof_and_three_in_a_row_are() -> None:
    budget = FalseHitBudget(BUDGET)
    assert [budget.told("s", agreed=False, now=5) for _ in range(3)] == [False, False, True]
    assert budget.state("s", 5) == "off"
    assert budget.counts("s") == (3, 3)
    assert not budget.told("s", agreed=False, now=6)  # a late one: said once


def test_the_first_hits_are_checked_and_then_a_share() -> None:
    budget = FalseHitBudget(BUDGET, share=0.25, first=3)
    for _ in range(3):
        assert budget.checks("s", draw=0.99)
        budget.told("s", agreed=True, now=0)
    assert not budget.checks("s", draw=0.25)
    assert budget.checks("s", draw=0.24)
    assert budget.checks("another", draw=0.99)


def switched_off(**options: float) -> FalseHitBudget:
    budget = FalseHitBudget(BUDGET, **options)  # pyright: ignore[reportArgumentType]
    while not budget.told("s", agreed=False, now=100):
        pass
    return budget


def test_off_stays_off_until_the_operator_says_so() -> None:
    budget = switched_off()
    assert budget.state("s", 1e9) == "off"
    assert budget.state("another", 1e9) == "on"
    assert budget.scopes_off == 1
    budget.reset("s")
    assert (budget.state("s", 1e9), budget.scopes_off) == ("on", 0)
    assert budget.counts("s") == (0, 0)


def test_after_a_cool_down_every_hit_is_checked_before_any_is_served() -> None:
    budget = switched_off(cool_down_s=60, first=5)
    assert budget.state("s", 159) == "off"
    for _ in range(5):
        assert budget.state("s", 160) == "probing"
        assert budget.checks("s", draw=0.99)
        budget.told("s", agreed=True, now=160)
    assert budget.state("s", 160) == "on"


def test_a_probe_that_fails_begins_another_cool_down() -> None:
    budget = switched_off(cool_down_s=60)
    assert budget.state("s", 200) == "probing"
    while not budget.told("s", agreed=False, now=200):
        pass
    assert [budget.state("s", now) for now in (259, 260)] == ["off", "probing"]


def test_the_number_of_scopes_is_bounded_and_one_that_is_off_is_never_forgotten() -> None:
    budget = FalseHitBudget(BUDGET, most_scopes=3)
    for scope in ("a", "b"):
        while not budget.told(scope, agreed=False, now=0):
            pass
    for n in range(100):
        budget.told(f"other {n}", agreed=True, now=0)
        assert len(budget) == 3
    assert {budget.state(scope, 0) for scope in ("a", "b")} == {"off"}
    while not budget.told("c", agreed=False, now=0):
        pass
    assert budget.state("never seen", 0) == "off"  # there is no room to watch it
    assert not budget.told("never seen", agreed=True, now=0)
    budget.reset()
    assert (budget.state("a", 0), len(budget), budget.scopes_off) == ("on", 0, 0)


@pytest.mark.parametrize("budget", [0, -0.1, 0.11, float("nan")])
def test_a_budget_that_makes_no_sense_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most"):
        FalseHitBudget(budget)
