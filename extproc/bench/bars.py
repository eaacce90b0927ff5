"""Ratios with a bar, from measurements taken in rounds. Pure.

A ratio is taken within each round, where both sides met the same noise; its value is the median.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal, TypeVar

T = TypeVar("T")

_LEAST_ROUNDS = 3
_LEAST_COUNT = 1000

Measures = dict[str, float]
"""What one round measured of one contender; the names carry the units."""


@dataclass(frozen=True)
class Side:
    contender: str
    measure: str


@dataclass(frozen=True)
class Bar:
    """`top / bottom` is to be below or at least `limit`. A bar is a promise: never adjusted."""

    what: str
    top: Side
    bottom: Side
    wanted: Literal["<", ">="]
    limit: float


def percentile(values: Sequence[float], percent: int) -> float:
    """By linear interpolation between the values; of one value that one."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def medians(rounds: Sequence[Measures]) -> Measures:
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def judge(bar: Bar, rounds: Mapping[str, Sequence[Measures]]) -> dict[str, Any]:
    """The bar, what was measured and whether it holds; None where a side was not measured."""
    told = {"what": bar.what, "wanted": bar.wanted, "bar": bar.limit}
    tops, bottoms = rounds.get(bar.top.contender), rounds.get(bar.bottom.contender)
    if not tops or not bottoms:
        return told | {"value": None, "lowest": None, "highest": None, "holds": None}
    ratios = [
        top[bar.top.measure] / bottom[bar.bottom.measure]
        for top, bottom in zip(tops, bottoms, strict=True)
    ]
    value = median(ratios)
    holds = value < bar.limit if bar.wanted == "<" else value >= bar.limit
    return told | {
        "value": value,
        "lowest": min(ratios),
        "highest": max(ratios),
        "holds": holds,
    }


def verdict(
    what: str,
    value: float | None,
    wanted: Literal["<", "<=", ">="],
    bar: float,
    *,
    measured: bool = True,
) -> dict[str, Any]:
    """A bar and whether it holds. A value of None that was measured (there was no recovery, nothing
    was accepted) does not hold."""
    holds = value is not None and (
        value >= bar if wanted == ">=" else value < bar if wanted == "<" else value <= bar
    )
    return {
        "what": what,
        "value": value,
        "wanted": wanted,
        "bar": bar,
        "holds": holds if measured else None,
    }


def doubt(*, rounds: int, count: int, of: str) -> str | None:
    """Why no ratio of this run is to be trusted; None where it was long enough.

    count  how many of what `of` names each contender had in a round
    """
    if rounds >= _LEAST_ROUNDS and count >= _LEAST_COUNT:
        return None
    return (
        "Do not trust these ratios, a repetition may turn them: they want at least "
        f"{_LEAST_ROUNDS} rounds of {_LEAST_COUNT:,} {of}, and this run had {rounds} of {count:,}."
    )


def turned(those: Sequence[T], by: int) -> list[T]:
    """In rotation, so that each comes once first, once second, ..."""
    by %= len(those)
    return [*those[by:], *those[:by]]
