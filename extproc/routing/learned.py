"""A score of difficulty learned from this deployment's own outcomes: 40 trees of depth two.

`forebay train-router` makes the model's file. A file is believed only if all of it is as written
there; one that did not beat the others on later traffic is never used.
"""

from itertools import pairwise
from math import isclose
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from extproc.routing.features import INDEX, NAMES, Features

TREES = 40

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class ModelError(Exception):
    """A model's file cannot be used; the message says where in it what is wrong."""


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Split(_Block):
    """Low where the feature is at most `at`, else high."""

    feature: str
    at: _Finite

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.feature not in INDEX:
            raise ValueError(f"{self.feature} is no feature that is counted here")
        return self


class Tree(_Block):
    """`root`, then `low` or `high` by its outcome; the value added to the score is that of
    (low, low), (low, high), (high, low) or (high, high)."""

    root: Split
    low: Split
    high: Split
    values: tuple[_Finite, _Finite, _Finite, _Finite]


class Interval(_Block):
    """Of a difference of APGR: 95% of the bootstrap's draws are between."""

    low: _Finite
    value: _Finite
    high: _Finite


class Evidence(_Block):
    """How the model did on traffic later than what it was trained on."""

    trained_on: Annotated[int, Field(gt=0)]
    """Requests, the earlier ones."""
    compared_on: Annotated[int, Field(gt=0)]
    """Requests, the later ones."""
    last_trained_s: _Finite
    """Unix time of the last one of training."""
    apgr: _Finite
    more_than_prior: Interval
    more_than_length: Interval

    @property
    def beats_both(self) -> bool:
        return self.more_than_prior.low > 0 and self.more_than_length.low > 0


class Usual(_Block):
    """The model's scores of the later requests; see extproc.routing.drift."""

    edges: tuple[_Finite, ...]
    shares: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if any(one >= other for one, other in pairwise(self.edges)):
            raise ValueError("edges: they do not rise")
        if len(self.shares) != len(self.edges) + 1 or not isclose(sum(self.shares), 1):
            raise ValueError("shares: there is one more than edges, and they sum to 1")
        return self


class Model(_Block):
    """The file, JSON. The score is the log-odds of `small wrong and large right`."""

    format: Literal["forebay-router-1"]
    features: tuple[str, ...]
    """All that the trees may ask for, to be counted as here."""
    base: _Finite
    trees: Annotated[tuple[Tree, ...], Field(min_length=TREES, max_length=TREES)]
    usual: Usual
    evidence: Evidence

    @model_validator(mode="after")
    def _same_features(self) -> Self:
        if self.features != NAMES:
            raise ValueError("features: trained with another version of Forebay; train again")
        return self

    @model_validator(mode="after")
    def _better(self) -> Self:
        if not self.evidence.beats_both:
            raise ValueError("evidence: it did not beat prior and length on later traffic")
        return self


class _Nodes(NamedTuple):
    root: int
    root_at: float
    low: int
    low_at: float
    high: int
    high_at: float
    values: tuple[float, float, float, float]


class Trees:
    """Predicts, in pure Python: some microseconds for 40 trees."""

    def __init__(self, base: float, trees: tuple[Tree, ...]) -> None:
        self._base = base
        self._nodes = [
            _Nodes(*_asked(tree.root), *_asked(tree.low), *_asked(tree.high), tree.values)
            for tree in trees
        ]

    def score(self, of: Features) -> float:
        """Log-odds; higher is harder."""
        total = self._base
        for root, root_at, low, low_at, high, high_at, values in self._nodes:
            if of[root] <= root_at:
                total += values[0 if of[low] <= low_at else 1]
            else:
                total += values[2 if of[high] <= high_at else 3]
        return total

    def parts(self, of: Features) -> dict[str, float]:
        """What each feature that was asked for moves the score, up or down from where it would be
        on a mean of all leaves: a tree's root moves it to the mean of a side's two leaves, and the
        question there to one of them (Saabas 2014, Interpreting random forests)."""
        moved: dict[str, float] = {}
        for root, root_at, low, low_at, high, high_at, values in self._nodes:
            is_low = of[root] <= root_at
            side = values[:2] if is_low else values[2:]
            asked, at = (low, low_at) if is_low else (high, high_at)
            leaf = side[0 if of[asked] <= at else 1]
            of_side, of_all = sum(side) / 2, sum(values) / 4
            for feature, by in ((root, of_side - of_all), (asked, leaf - of_side)):
                moved[NAMES[feature]] = moved.get(NAMES[feature], 0.0) + by
        return moved


def _asked(split: Split) -> tuple[int, float]:
    return INDEX[split.feature], split.at


def parse(content: bytes) -> Model:
    """Of a model's file. Raises ModelError."""
    try:
        return Model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}." for part in first["loc"]).rstrip(".")
        message = first["msg"].removeprefix("Value error, ")
        what = f"{where}: {message}" if where else message
        raise ModelError(f"{what}; write the file with forebay train-router") from error
