"""Gradient boosting of 40 trees of depth two, for a yes or no; in numpy. Not for the request path.

Newton boosting with the logistic loss on binned features (Friedman 2001; Chen and Guestrin 2016,
arXiv:1603.02754, equations 5 to 7). The numbers below were chosen once, in the experiments on exam
questions, and are not tuned to anybody's outcomes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extproc.learning.apgr import Floats, Ints
from extproc.routing.features import NAMES
from extproc.routing.learned import TREES, Split, Tree, Trees

_RATE = 0.12
_LEAST_IN_LEAF = 30
_L2 = 5.0
_BINS = 64
_DIGITS = 6

Flags = NDArray[np.bool_]


class Fitted(NamedTuple):
    base: float
    """Log-odds before any tree."""
    trees: tuple[Tree, ...]

    def scores(self, x: Floats) -> Floats:
        """Of (n, features): log-odds, by the code that serves."""
        score = Trees(self.base, self.trees).score
        return np.array([score(row) for row in x.tolist()])


class _Cut(NamedTuple):
    feature: int
    bin: int
    """The last one that is low."""


def fit(x: Floats, wanted: Flags) -> Fitted:
    """`x`: (n, features), in the order of NAMES. `wanted`: what is to score high, (n,); some have
    to be, and some not. ValueError where there is nothing to learn."""
    if not 0 < wanted.sum() < len(wanted):
        raise ValueError("all outcomes are alike: there is nothing to learn")
    bins = _Bins(x)
    base = round(float(np.log(wanted.sum() / (~wanted).sum())), _DIGITS)
    score = np.full(len(x), base)
    trees: list[Tree] = []
    for _ in range(TREES):
        chance = 1 / (1 + np.exp(-score))
        tree, step = _tree(bins, chance - wanted, chance * (1 - chance))
        trees.append(tree)
        score += step
    return Fitted(base, tuple(trees))


class _Bins:
    """Each feature cut at 63 values at most, about as many requests in each bin."""

    def __init__(self, x: Floats) -> None:
        self.edges = [_edges(column) for column in x.T]
        columns: list[Ints] = [
            np.searchsorted(edges, column) for edges, column in zip(self.edges, x.T, strict=True)
        ]
        self.of = np.stack(columns, axis=1)
        self._cells: Ints = self.of + np.arange(x.shape[1]) * _BINS

    def sums(self, rows: Flags, values: Floats) -> Floats:
        """(features, bins): of `values` of these rows in each bin and all below it."""
        cells = self._cells[rows]
        repeated = np.repeat(values[rows], cells.shape[1])
        shape = (cells.shape[1], _BINS)
        found = np.bincount(cells.ravel(), repeated, shape[0] * shape[1])
        return np.cumsum(found.reshape(shape), axis=1, dtype=np.float64)

    def is_low(self, cut: _Cut) -> Flags:
        return self.of[:, cut.feature] <= cut.bin

    def split(self, cut: _Cut) -> Split:
        return Split(feature=NAMES[cut.feature], at=float(self.edges[cut.feature][cut.bin]))


def _edges(column: Floats) -> Floats:
    """Half way between values that are there."""
    values = np.unique(column)
    if len(values) <= _BINS:
        return (values[:-1] + values[1:]) / 2
    shares = np.linspace(0, 1, _BINS + 1)[1:-1]
    lower = np.unique(np.quantile(column, shares, method="lower"))
    lower = lower[lower < values[-1]]
    return (lower + values[np.searchsorted(values, lower) + 1]) / 2


def _tree(bins: _Bins, slope: Floats, curve: Floats) -> tuple[Tree, Floats]:
    """The tree, and what it adds to the score of each request. `slope` and `curve`: the loss's
    first and second derivative by the score."""
    everything = np.ones(len(slope), dtype=np.bool_)
    root = _best(bins, everything, slope, curve)
    if root is None:
        raise ValueError("the requests are too few, or all alike: nothing splits them")
    sides = [bins.is_low(root), ~bins.is_low(root)]
    cuts = [_best(bins, side, slope, curve) for side in sides]
    values: list[float] = []
    step = np.zeros(len(slope))
    for side, cut in zip(sides, cuts, strict=True):
        # A side that no split improves has one value; it is asked again what brought it here.
        lows = bins.is_low(cut) if cut else everything
        for leaf in (side & lows, side & (~lows if cut else lows)):
            value = round(float(_newton(slope[leaf], curve[leaf])), _DIGITS)
            values.append(value)
            step[leaf] = value
    low, high = (bins.split(cut or root) for cut in cuts)
    first, second, third, fourth = values
    tree = Tree(root=bins.split(root), low=low, high=high, values=(first, second, third, fourth))
    return tree, step


def _newton(slope: Floats, curve: Floats) -> float:
    return -_RATE * float(slope.sum()) / (float(curve.sum()) + _L2)


def _best(bins: _Bins, rows: Flags, slope: Floats, curve: Floats) -> _Cut | None:
    """The cut of these rows that lowers the loss the most; None where none does that leaves 30 on
    each side."""
    slopes, curves = bins.sums(rows, slope), bins.sums(rows, curve)
    counts = bins.sums(rows, np.ones(len(slope)))
    all_slope, all_curve, count = slopes[:, -1:], curves[:, -1:], counts[:, -1:]
    gain = (
        slopes**2 / (curves + _L2)
        + (all_slope - slopes) ** 2 / (all_curve - curves + _L2)
        - all_slope**2 / (all_curve + _L2)
    )
    enough = (counts >= _LEAST_IN_LEAF) & (count - counts >= _LEAST_IN_LEAF)
    gain = np.where(enough, gain, 0.0)
    feature, last_low = np.unravel_index(int(np.argmax(gain)), gain.shape)
    if gain[feature, last_low] <= 0:
        return None
    return _Cut(int(feature), int(last_low))
