"""How good an order of requests is, from hardest to easiest: APGR, and how sure that is.

Average performance gap recovered, of RouteLLM (Ong et al. 2024, arXiv:2406.18665, section 3.3):
PGR(a) is the part of the gap between small and large alone that is recovered while the share a of
the requests, those that score highest, goes large; APGR is its mean over all a from 0 to 1. Random
order has 0.5. RouteLLM takes the mean of ten shares; here it is the integral itself. Where scores
are equal, their order is taken as random.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from extproc.routing.learned import Interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DRAWS = 2000
_AT_ONCE = 100


class NoGapError(ValueError):
    """There is nothing to recover, or it could be chance: the large model is hardly better."""


def apgr(score: Floats, gain: Floats) -> float:
    """`score`: of n requests, higher is harder. `gain`: large minus small, each 1 where right, so
    1, 0 or -1. Raises NoGapError."""
    return float(_weighted(_Order(score), gain, np.ones((1, len(gain))))[0])


def draws(
    scores: Mapping[str, Floats], gain: Floats, *, seed: int, groups: Ints | None = None
) -> dict[str, Floats]:
    """APGR of each of `scores` in the same 2,000 bootstrap draws, so that their differences are
    paired. `groups`: a number from 0 for each request; whole groups are drawn, not requests. Raises
    NoGapError."""
    orders = {name: _Order(score) for name, score in scores.items()}
    found: dict[str, list[Floats]] = {name: [] for name in scores}
    for weights in _weights(len(gain), groups, seed):
        for name, order in orders.items():
            found[name].append(_weighted(order, gain, weights))
    return {name: np.concatenate(those) for name, those in found.items()}


def interval(value: float, drawn: Floats) -> Interval:
    """`value` as measured, between the 2.5th and the 97.5th percentile of the draws."""
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(low=float(low), value=value, high=float(high))


def mean(those: Sequence[Floats]) -> Floats:
    """Of the same draws of several scores."""
    return np.mean(np.stack(those), axis=0)


class _Order:
    """Requests by falling score; for each the first and the last one of equal score."""

    def __init__(self, score: Floats) -> None:
        self.rows = np.argsort(-score, kind="stable")
        _, group, sizes = np.unique(-score[self.rows], return_inverse=True, return_counts=True)
        self.last = (np.cumsum(sizes) - 1)[group]
        self.first = self.last - sizes[group] + 1


def _weighted(order: _Order, gain: Floats, weights: Floats) -> Floats:
    """APGR of draws, (draws, requests) -> (draws,): each request counts `weights` times. A request
    at place a (its middle, as a share of all) is part of what is recovered from a to 1."""
    weights = weights[:, order.rows]
    until = np.cumsum(weights, axis=1)
    before = (until - weights)[:, order.first]
    place = (before + until[:, order.last]) / (2 * until[:, -1:])
    gained = weights * gain[order.rows]
    gap = gained.sum(axis=1)
    if np.any(gap <= 0):
        raise NoGapError(
            "the large model's answers are not right more often than the small one's, or so "
            "little that it could be chance: there is nothing to route for"
        )
    return (gained * (1 - place)).sum(axis=1) / gap


def _weights(count: int, groups: Ints | None, seed: int) -> Iterator[Floats]:
    """How often each request is in a draw."""
    # A stream of its own: data or scores made with the same seed must not follow the draws.
    rng = np.random.default_rng((seed, DRAWS))
    drawn = count if groups is None else int(groups.max()) + 1
    for _ in range(DRAWS // _AT_ONCE):
        times = rng.multinomial(drawn, np.full(drawn, 1 / drawn), size=_AT_ONCE)
        yield (times if groups is None else times[:, groups]).astype(np.float64)
