"""A count by a size: what an overhead does to it, and what little knowledge does."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.estimates import Line


def line(pairs: Iterable[tuple[float, float]]) -> Line:
    made = Line()
    for size, count in pairs:
        made.add(size, count)
    return made


def test_before_there_is_a_pair_a_size_is_its_own_count() -> None:
    assert line([]).count(12) == 12


def test_pairs_of_one_size_give_a_ratio() -> None:
    made = line([(10, 15), (10, 25), (10.1, 20)])
    assert made.count(40) == pytest.approx(80, rel=0.01)


@given(
    st.floats(0, 1000),
    st.floats(0.1, 10),
    st.lists(st.integers(1, 1000), min_size=2, max_size=40),
    st.integers(0, 10_000),
)
def test_an_overhead_and_a_rate_are_found(
    overhead: float, rate: float, sizes: list[int], size: int
) -> None:
    sizes = [*sizes, 1, 1000]  # they differ
    made = line((seen, overhead + rate * seen) for seen in sizes)
    assert made.count(size) == pytest.approx(overhead + rate * size, rel=1e-3, abs=1e-3)


positive = st.floats(0.01, 1e5)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=80), positive)
def test_whatever_was_seen_the_count_lies_between_the_mean_and_the_ratio(
    pairs: list[tuple[float, float]], size: float
) -> None:
    """Neither a negative count, nor one that grows faster than the size."""
    made = line(pairs)
    by_ratio = made.count(0) + (made.count(1e6) - made.count(0)) * size / 1e6
    assert made.count(size) == pytest.approx(by_ratio, rel=1e-6, abs=1e-6)
    assert made.count(0) >= -1e-6
    assert made.count(size) >= made.count(0) - 1e-6
