"""Whether the traffic still looks to a learned model as it did when the model was compared.

Sees scores alone, so it says that the traffic is another one, never that the model is worse.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import log

_BLOCK = 1000
_BLOCKS_IN_A_ROW = 2
# By convention in credit scoring, where the measure is from, 0.25 is a major shift (Siddiqi 2006,
# Credit Risk Scorecards). Blocks of the same traffic have about 0.03.
_MOST = 0.25
_LEAST_SHARE = 1e-4


class Drift:
    """Population stability index of each 1,000 scores: sum over bins of (now - usual) x
    ln(now / usual). Two blocks in a row above 0.25 are a drift, which does not end: the model is to
    be trained again."""

    def __init__(self, edges: Sequence[float], shares: Sequence[float]) -> None:
        """`edges`: rising; a score belongs to the first bin whose edge it does not exceed, else to
        the last. `shares`: of the usual scores, by bin, one more than edges."""
        self._edges = edges
        self._usual = shares
        self._counts = [0] * len(shares)
        self._seen = 0
        self._blocks_above = 0
        self.index: float | None = None
        """Of the last whole block."""

    @property
    def found(self) -> bool:
        return self._blocks_above >= _BLOCKS_IN_A_ROW

    def saw(self, score: float) -> None:
        if self.found:
            return
        self._counts[bisect_left(self._edges, score)] += 1
        self._seen += 1
        if self._seen == _BLOCK:
            self.index = stability_index([n / _BLOCK for n in self._counts], self._usual)
            self._blocks_above = self._blocks_above + 1 if self.index > _MOST else 0
            self._counts, self._seen = [0] * len(self._usual), 0


def stability_index(now: Sequence[float], usual: Sequence[float]) -> float:
    """0 where both are alike. An empty bin counts as a ten-thousandth."""
    pairs = [
        (max(of_now, _LEAST_SHARE), max(of_usual, _LEAST_SHARE))
        for of_now, of_usual in zip(now, usual, strict=True)
    ]
    return sum([(of_now - of_usual) * log(of_now / of_usual) for of_now, of_usual in pairs])
