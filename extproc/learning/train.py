"""From outcomes to a model that may be used, or to the reason why none may.

The model is trained on the earlier requests and compared on the later ones, which it never saw, as
on the day that it would have been put to use. What is written is the model that was compared.
"""

from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from extproc.learning import apgr
from extproc.learning.apgr import Floats
from extproc.learning.boosting import Fitted, fit
from extproc.learning.outcomes import Outcomes, OutcomesError
from extproc.routing import prior
from extproc.routing.features import INDEX, NAMES
from extproc.routing.learned import Evidence, Interval, Model, Usual

LEAST = 800
"""Requests: with fewer, trees did not beat length in the experiments."""
_EARLIER = 0.6
_FOLDS = 5
_SEED = 1
_USUAL_BINS = 10

Result = dict[str, Any]
"""Of JSON's types alone."""


class Trained(NamedTuple):
    model: Model | None
    """None: it did not beat both, and `refused` says which."""
    refused: str | None
    result: Result


def train(outcomes: Outcomes) -> Trained:
    """Raises OutcomesError where the outcomes are too few, or cannot be learned from."""
    if len(outcomes) < LEAST:
        raise OutcomesError(
            f"{len(outcomes):,} requests are too few to learn from; {LEAST} is the least"
        )
    cut = round(_EARLIER * len(outcomes))
    earlier, later = outcomes.where(slice(cut)), outcomes.where(slice(cut, None))
    try:
        fitted = fit(earlier.x, earlier.wanted)
        crossed = apgr.apgr(cross_validated(earlier, folds=_FOLDS, seed=_SEED), earlier.gain)
        scores = by_hand(later.x) | {"learned": fitted.scores(later.x)}
        values = {name: apgr.apgr(score, later.gain) for name, score in scores.items()}
        draws = apgr.draws(scores, later.gain, seed=_SEED)
    except ValueError as error:
        raise OutcomesError(str(error)) from error

    def more_than(other: str) -> Interval:
        value = values["learned"] - values[other]
        return apgr.interval(value, draws["learned"] - draws[other])

    evidence = Evidence(
        trained_on=len(earlier),
        compared_on=len(later),
        last_trained_s=float(earlier.time_s[-1]),
        apgr=values["learned"],
        more_than_prior=more_than("prior"),
        more_than_length=more_than("length"),
    )
    result: Result = {
        "requests": len(outcomes),
        "earlier": _part(earlier),
        "later": _part(later),
        "cross_validated_on_earlier_apgr": crossed,
        "later_apgr": {
            name: apgr.interval(value, draws[name]).model_dump() for name, value in values.items()
        },
        "learned_more_than": {
            "prior": evidence.more_than_prior.model_dump(),
            "length": evidence.more_than_length.model_dump(),
        },
        "beats_both": evidence.beats_both,
    }
    if not evidence.beats_both:
        return Trained(None, _why_not(evidence), result)
    return Trained(_model(fitted, scores["learned"], evidence), None, result)


def by_hand(x: Floats) -> dict[str, Floats]:
    """The scores that need no training: length and prior, of (n, features)."""
    return {
        "length": x[:, INDEX["chars"]],
        "prior": np.array([prior.score(row) for row in x.tolist()]),
    }


def cross_validated(outcomes: Outcomes, *, folds: int, seed: int) -> Floats:
    """Scores of all requests, each by a model that was trained on the other folds; ValueError
    where that cannot be."""
    order = np.random.default_rng(seed).permutation(len(outcomes))
    # As much gap in each: else a fold that has more is scored lower, by models that saw less.
    order = order[np.argsort(outcomes.gain[order], kind="stable")]
    groups = np.empty(len(outcomes), dtype=np.int64)
    groups[order] = np.arange(len(outcomes)) % folds
    return left_out(outcomes, groups)


def left_out(outcomes: Outcomes, groups: apgr.Ints) -> Floats:
    """Scores of all requests, each by a model that was trained on all groups but its own."""
    scores = np.zeros(len(outcomes))
    for group in np.unique(groups):
        out = groups == group
        others = outcomes.where(~out)
        scores[out] = fit(others.x, others.wanted).scores(outcomes.x[out])
    return scores


def _part(outcomes: Outcomes) -> Result:
    first, last = (
        datetime.fromtimestamp(float(outcomes.time_s[at]), UTC).isoformat(timespec="seconds")
        for at in (0, -1)
    )
    return {
        "requests": len(outcomes),
        "from": first,
        "to": last,
        "small_right": float(outcomes.small_right.mean()),
        "large_right": float(outcomes.large_right.mean()),
    }


def _why_not(evidence: Evidence) -> str:
    compared = {"prior": evidence.more_than_prior, "length": evidence.more_than_length}
    lost = [name for name, interval in compared.items() if interval.low <= 0]
    return (
        f"on the later requests the model is not surely better than {' and '.join(lost)}: no model "
        "is written. Collect more outcomes, or stay with prior"
    )


def _model(fitted: Fitted, scores: Floats, evidence: Evidence) -> Model:
    """`scores`: its own, of the later requests."""
    return Model(
        format="forebay-router-1",
        features=NAMES,
        base=fitted.base,
        trees=fitted.trees,
        usual=_usual(scores),
        evidence=evidence,
    )


def _usual(scores: Floats) -> Usual:
    """In ten bins, or fewer where many scores are equal."""
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, _USUAL_BINS + 1)[1:-1]))
    counts = np.bincount(np.searchsorted(edges, scores), minlength=len(edges) + 1)
    return Usual(edges=tuple(edges.tolist()), shares=tuple((counts / len(scores)).tolist()))
