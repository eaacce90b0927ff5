"""Arithmetic of Prometheus histograms: differences, sums, quantiles, how many were over a limit.

Pure. Must never claim to know more than the buckets tell: see `over`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, lgamma, log
from typing import NamedTuple


class Over(NamedTuple):
    """How many values were above a limit: at least and at most. They differ where the limit lies
    inside a bucket."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` values lie above `bounds[i - 1]` and up to `bounds[i]`; the last bound is
    infinite, and all values are 0 or more. `sum`: of all values."""

    bounds: tuple[float, ...] = (inf,)
    counts: tuple[float, ...] = (0.0,)
    sum: float = 0.0

    @classmethod
    def of_cumulative(cls, upto: Mapping[float, float], total: float) -> "Histogram":
        """`upto`: bucket bound to the number of values up to it, as Prometheus writes them; the
        infinite one must be among them. ValueError if not, or if the numbers fall."""
        bounds = tuple(sorted(upto))
        if not bounds or bounds[-1] != inf:
            raise ValueError("a histogram without a +Inf bucket")
        numbers = [upto[bound] for bound in bounds]
        counts = (numbers[0], *(high - low for low, high in pairwise(numbers)))
        if min(counts) < 0:
            raise ValueError("a histogram whose buckets fall")
        return cls(bounds, counts, total)

    @property
    def count(self) -> float:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """None without values."""
        return self.sum / self.count if self.count else None

    def __add__(self, other: "Histogram") -> "Histogram":
        """Both together, on the bounds that both have."""
        if not self.count or not other.count:
            return self if self.count else other
        bounds = sorted(set(self.bounds) & set(other.bounds))
        upto = {bound: self._upto(bound) + other._upto(bound) for bound in bounds}
        return Histogram.of_cumulative(upto, self.sum + other.sum)

    def since(self, before: "Histogram") -> "Histogram":
        """What came after `before` was read. All of it where the process began anew: then some
        bucket has fewer than before, or other bounds."""
        if not before.count:
            return self
        if self.bounds != before.bounds:
            return self
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return self if min(counts) < 0 else Histogram(self.bounds, counts, self.sum - before.sum)

    def bucket(self, share: float) -> tuple[float, float]:
        """The ends of the bucket that holds this quantile; without values 0 and 0."""
        rank, seen = share * self.count, 0.0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return (self.bounds[index - 1] if index else 0.0), self.bounds[index]
        return 0.0, 0.0

    def quantile(self, share: float) -> float:
        """As Prometheus' histogram_quantile: linear between the ends of the bucket that holds it;
        the last finite bound where it lies above that. So it may be off by a bucket. 0 without
        values."""
        low, high = self.bucket(share)
        if high in (0.0, inf):
            return low
        below = self._upto(low) if low else 0.0
        inside = self.counts[self.bounds.index(high)]
        return low + (high - low) * (share * self.count - below) / inside

    def over(self, limit: float) -> Over:
        """Exact where `limit` is a bound."""
        above = [high for high in self.bounds if high >= limit]
        certain = self._upto(above[0]) if above else self.count
        possible = self._upto(max((bound for bound in self.bounds if bound <= limit), default=0.0))
        return Over(self.count - certain, self.count - possible)

    def _upto(self, bound: float) -> float:
        pairs = zip(self.bounds, self.counts, strict=True)
        return sum(count for high, count in pairs if high <= bound)


NONE = Histogram()
"""Without values; also where there is no such metric."""


def chance_of_so_many(late: float, answers: float, share: float) -> float:
    """The chance that of so many answers at least `late` are late, if each were with probability
    `share`: the upper tail of the binomial distribution. 1 where `late` is no more than that
    lets expect."""
    n, k = round(answers), round(late)
    if k <= n * share:
        return 1.0
    if k > n:
        return 0.0
    odds = log(share) - log(1 - share)
    term = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + n * log(1 - share) + k * odds
    ratio = total = 1.0
    while k < n and ratio > 1e-12:  # beyond the mean they fall at least geometrically
        ratio *= (n - k) / (k + 1) * share / (1 - share)
        total += ratio
        k += 1
    return min(1.0, total * exp(term))
