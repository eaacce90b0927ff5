"""Whether a promised share is kept over any 2,000 requests, whatever the scores; what that costs.

Simulated scores, drawn with seeds, and the scores of the questions where there are some. Nothing
here is tuned by what comes out.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from extproc.bench.routing.data import Questions
from extproc.learning.apgr import Floats
from extproc.routing.share import ShareKeeper

Told = dict[str, Any]

OVER = 2000
SHARE = 0.3
SHARES = (0.1, SHARE, 0.5)
_REQUESTS = 12_000
_SEEDS = 3
_ORDERS = 20


def streams(seed: int) -> Iterator[tuple[str, Floats]]:
    """Scores of 12,000 requests each, by what happens to the traffic."""
    rng = np.random.default_rng(seed)
    noise, at = rng.normal(size=_REQUESTS), np.arange(_REQUESTS)
    yield "steady", noise
    yield "abrupt shift, and back", noise * (1 + (at // 3000) % 2) + 5 * ((at // 3000) % 2)
    yield "abrupt shift of the scale", noise * np.where(at < 5000, 1, 1e-6)
    yield "drift", noise + at / 500
    yield "heavy ties", rng.choice([0.0, 1.0, 2.0], _REQUESTS, p=[0.6, 0.3, 0.1])
    yield "all equal", np.zeros(_REQUESTS)
    yield "always the highest so far", at.astype(np.float64)
    yield "rising, then falling", np.abs(at - _REQUESTS // 2) * -1.0
    yield "hard and easy by turns of 700", ((at // 700) % 2).astype(np.float64)


def worst_error(scores: Sequence[float], share: float) -> float:
    """Of any 2,000 of the decisions in a row: the largest distance from the share, in points."""
    keeper = ShareKeeper(share)
    return _worst([keeper.is_large(score) for score in scores], share)


def _worst(large: Sequence[bool], share: float) -> float:
    if len(large) < OVER:
        raise ValueError(f"{len(large)} decisions are fewer than {OVER}")
    sums = np.concatenate([[0], np.cumsum(large)])
    return float(np.max(np.abs((sums[OVER:] - sums[:-OVER]) / OVER - share)) * 100)


def adversary(share: float, requests: int = _REQUESTS) -> float:
    """The same, where each score depends on the decision before: harder than the last one after a
    large one, easier after a small one."""
    keeper, score = ShareKeeper(share), 0.0
    large: list[bool] = []
    for _ in range(requests):
        large.append(keeper.is_large(score))
        score += 1.0 if large[-1] else -1.0
    return _worst(large, share)


def kept(questions: Questions | None, learned: Floats | None) -> list[Told]:
    """The worst of all seeds and shares, for each kind of traffic."""
    worst: dict[str, float] = {"scores that follow the decisions": max(map(adversary, SHARES))}
    for seed in range(_SEEDS):
        for name, scores in streams(seed):
            errors = [worst_error(scores.tolist(), share) for share in SHARES]
            worst[name] = max(worst.get(name, 0.0), *errors)
    if questions is not None and learned is not None and len(set(questions.benches)) > 1:
        by_bench = np.argsort(questions.benches, kind="stable")
        twice = np.concatenate([learned[by_bench]] * 2)
        name = f"the questions, {' then '.join(sorted(set(questions.benches)))}, twice"
        if len(twice) >= OVER:
            worst[name] = max(worst_error(twice.tolist(), share) for share in SHARES)
    return [{"traffic": name, "worst_error_points": error} for name, error in worst.items()]


def cost(questions: Questions, learned: Floats) -> Told:
    """Of the gap, the part that is recovered with the share large: by the moving threshold, which
    knows only what came before, and by the best one for all, known afterwards. A mean of orders."""
    gain = questions.outcomes.gain
    best = np.argsort(-learned, kind="stable")[: round(SHARE * len(learned))]
    moving: list[float] = []
    shares: list[float] = []
    for seed in range(_ORDERS):
        order = np.random.default_rng(seed).permutation(len(learned))
        keeper = ShareKeeper(SHARE)
        large = np.array([keeper.is_large(score) for score in learned[order].tolist()])
        moving.append(float(gain[order][large].sum() / gain.sum()))
        shares.append(float(large.mean()))
    return {
        "share": SHARE,
        "share_sent": float(np.mean(shares)),
        "recovered_by_moving": float(np.mean(moving)),
        "recovered_by_best": float(gain[best].sum() / gain.sum()),
    }
