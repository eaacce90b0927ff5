"""A sampled request that both pools have answered: what the learned difficulty is trained on.

One JSON line each. Never holds the prompt: its counted features alone.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from extproc.routing.features import NAMES, Features

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Outcome(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    time_s: Finite
    """Unix time of the request."""
    features: dict[str, Finite]
    """As extproc.routing.features counts them, by their names."""
    small_right: bool
    """Whether the small model's answer was good enough, by a judge that did not know whose it
    was."""
    large_right: bool
    propensity: Annotated[float, Field(gt=0, le=1)] | None = None
    """With what chance the request was sampled. None: not known."""

    @model_validator(mode="after")
    def _all_features(self) -> Self:
        odd = [f"{name} is missing" for name in NAMES if name not in self.features]
        odd += [f"{name} is none" for name in self.features if name not in NAMES]
        if odd:
            more = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
            raise ValueError(f"features: {odd[0]}{more}; this version of Forebay counts others")
        return self

    @property
    def in_order(self) -> Features:
        return [self.features[name] for name in NAMES]


def named(of: Features) -> dict[str, float]:
    """Features as an Outcome has them."""
    return dict(zip(NAMES, of, strict=True))
