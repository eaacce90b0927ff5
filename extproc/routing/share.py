"""A threshold that moves, so that a promised share of the traffic goes to the large pool.

It promises the share, never quality: what the scores are worth it does not know. Deterministic.
"""

from bisect import bisect_left, insort
from collections import deque

_WINDOW = 500
# Larger: closer to the share. Smaller: less often a harder prompt goes small only since others
# went large before it.
_STEP = 0.02


class ShareKeeper:
    """Each score is turned into its rank, the share of the last 500 that were lower, so that
    neither the scale of the scores nor a shift of the traffic matters for long. A request goes
    large where its rank is above a threshold, which rises by step x (1 - share) after each that
    did and falls by step x share after each that did not.

    That is the update of adaptive conformal inference (Gibbs and Candes 2021, arXiv:2106.00170,
    with their proof): ranks stay in [0, 1], so the threshold stays in [-step, 1 + step], and what
    it moved is step x (large - share x all). So of *any* n requests in a row, whatever their
    scores, the share is off by at most (1 + step) / (step n): 2.6 points of 2,000.
    """

    def __init__(self, share: float) -> None:
        """`share`: of the requests, above 0 and below 1. ValueError otherwise."""
        if not 0 < share < 1:
            raise ValueError(f"share: {share:g} is not above 0 and below 1")
        self.share = share
        self._threshold = 1 - share
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def is_large(self, score: float) -> bool:
        """Decides, and counts the decision. `score`: finite; higher is harder."""
        large = self.would_be_large(score)
        self._threshold += _STEP * (large - self.share)
        self._remember(score)
        return large

    def would_be_large(self, score: float) -> bool:
        """As is_large would decide now; nothing is counted."""
        return bisect_left(self._sorted, score) / max(len(self._sorted), 1) > self._threshold

    def _remember(self, score: float) -> None:
        if len(self._recent) == _WINDOW:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(score)
        insort(self._sorted, score)
