"""Is this text for the small or for the large pool? One question, four ways to answer it.

`off` always says the same, `rules` look for words, `prior` and `learned` send a promised share of
the traffic large: that with the highest scores. Pins and named models are honoured before this.
"""

from typing import Protocol

from extproc.routing import prior, rules
from extproc.routing.drift import Drift
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

    def look(self, text: str, latency_budget_ms: float | None) -> Judgement:
        """What `judge` would say now. Nothing is counted."""
        ...


class Off:
    """No text is looked at: `size` for all."""

    def __init__(self, size: Size) -> None:
        self._judgement = Judgement(size, "default")

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        return rules.hurried(latency_budget_ms) or self._judgement

    look = judge


class Rules:
    """See extproc.routing.rules."""

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        return rules.judge(text, latency_budget_ms)

    look = judge


class Scorer(Protocol):
    @property
    def name(self) -> str:
        """How the reason of a judgement begins."""
        ...

    def score(self, of: Features) -> float:
        """Higher is harder."""
        ...

    def look(self, of: Features) -> float:
        """The same, of a request that does not count."""
        ...


class Prior:
    name = "prior"

    def score(self, of: Features) -> float:
        return prior.score(of)

    look = score


class Learned:
    """A model while the traffic is what it was compared on; once it has drifted away, prior."""

    def __init__(self, model: Model) -> None:
        self._trees = Trees(model.base, model.trees)
        self.drift = Drift(model.usual.edges, model.usual.shares)

    @property
    def name(self) -> str:
        return "prior" if self.drift.found else "learned"

    def score(self, of: Features) -> float:
        if not self.drift.found:
            score = self._trees.score(of)
            self.drift.saw(score)
            return score
        return prior.score(of)

    def look(self, of: Features) -> float:
        return prior.score(of) if self.drift.found else self._trees.score(of)


class Scored:
    """Large are those with the highest scores, so many that it is the promised share of all that
    are scored; a client in a hurry is not. Each processor keeps the share of its own traffic."""

    def __init__(self, scorer: Scorer, share: float) -> None:
        """`share`: see ShareKeeper, which keeps it also where the scorer turns to another score."""
        self._scorer = scorer
        self._keeper = ShareKeeper(share)

    def judge(self, text: str, latency_budget_ms: float | None) -> Judgement:
        if hurried := rules.hurried(latency_budget_ms):
            return hurried
        name = self._scorer.name
        large = self._keeper.is_large(self._scorer.score(features(text)))
        return scored(name, large=large)

    def look(self, text: str, latency_budget_ms: float | None) -> Judgement:
        if hurried := rules.hurried(latency_budget_ms):
            return hurried
        score = self._scorer.look(features(text))
        return scored(self._scorer.name, large=self._keeper.would_be_large(score))


def scored(name: str, *, large: bool) -> Judgement:
    """`name`: of the scorer."""
    return Judgement("large", f"{name}-hard") if large else Judgement("small", f"{name}-easy")
