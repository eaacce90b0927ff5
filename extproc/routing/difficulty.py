"""Is this text for the small or for the large pool? One question, four ways to answer it.

`off` always says the same, `rules` look for words, `prior` and `learned` send a promised share of
the traffic large: that with the highest scores. Pins and named models are honoured before this.
"""

from collections.abc import Callable
from typing import Protocol

from extproc.routing import prior, rules
from extproc.routing.features import Features, features
from extproc.routing.learned import Model, Trees
from extproc.routing.rules import Judgement, Size
from extproc.routing.share import ShareKeeper


class Difficulty(Protocol):
    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        """`text`: of the last user message. `latency_budget_ms`: what the client has left, if it
        said so; too little goes small, whatever the text. Called once for each request that is to
        be routed, since a share is kept by what was decided before. Reasons are few: they label
        metrics."""
        ...


class Off:
    """No text is looked at: `size` for all."""

    def __init__(self, size: Size) -> None:
        self._judgement = Judgement(size, "default")

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        return rules.hurried(latency_budget_ms) or self._judgement


class Rules:
    """See extproc.routing.rules."""

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        return rules.judge(text, latency_budget_ms)


class Scored:
    """Large are those with the highest scores, so many that it is the promised share of all that
    are scored; a client in a hurry is not. Each processor keeps the share of its own traffic."""

    def __init__(self, name: str, score: Callable[[Features], float], share: float) -> None:
        """`name`: how the reason begins. `share`: see ShareKeeper."""
        self._score = score
        self._keeper = ShareKeeper(share)
        self._small = Judgement("small", f"{name}-easy")
        self._large = Judgement("large", f"{name}-hard")

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        if hurried := rules.hurried(latency_budget_ms):
            return hurried
        large = self._keeper.is_large(self._score(features(text)))
        return self._large if large else self._small


def by_prior(share: float) -> Scored:
    return Scored("prior", prior.score, share)


def by_model(model: Model, share: float) -> Scored:
    return Scored("learned", Trees(model.base, model.trees).score, share)
