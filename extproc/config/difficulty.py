"""What the policy says of difficulty: how requests are judged, and how to learn from them."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from extproc.config.price import PriceConfig
from extproc.config.tree import mapping
from extproc.config.values import Block, DurationS, Name, Url


class DifficultyConfig(Block):
    """Between the small and the large pool, for requests that leave the choice to us."""

    policy: Literal["off", "rules", "prior", "learned"] = "rules"
    """off: all go small; rules: words decide; prior: the hardest by a score set by hand, `share` of
    them, go large; learned: the same by the score of `model_file`, and by prior from when the
    traffic has drifted away from what that was compared on."""
    share: float = Field(default=0.3, gt=0, lt=1)
    """Of the requests that are judged, how many go large, with prior and learned."""
    model_file: Path | None = None
    """What `forebay train-router --write` wrote; for learned, and needed there. A change of it is
    taken as one of the config is."""

    @model_validator(mode="before")
    @classmethod
    def _off_is_a_word(cls, given: object) -> object:
        """YAML reads a bare off as false."""
        block = mapping(given)
        return {**block, "policy": "off"} if block.get("policy") is False else given

    @model_validator(mode="after")
    def _learned_needs_a_model(self) -> Self:
        if self.policy == "learned" and self.model_file is None:
            raise ValueError(
                "policy: learned needs model_file: what forebay train-router --write wrote. "
                "Without one: policy: prior"
            )
        return self


class JudgeConfig(Block):
    """A server that has POST /v1/chat/completions. It is sent prompts and answers, and has 64
    tokens for its verdict: a model that thinks before it answers needs that switched off."""

    url: Url
    model: Name
    """As the server calls it. Better than both pools' models, or it cannot tell them apart."""
    key_file: Path | None = None
    """With a credential for the server. Left out: the environment's FOREBAY_JUDGE_KEY, or none."""
    time_limit: DurationS = 30.0
    price: PriceConfig
    """By which usd_per_day is counted; {input: 0, output: 0} for one that costs nothing."""


class LearningConfig(Block):
    """A sample of the judged requests is answered by both pools in the background and judged blind;
    what came of it is what `forebay train-router` reads."""

    share: float = Field(default=0.01, gt=0, le=1)
    """The chance of each judged request."""
    usd_per_day: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """What samples may cost on a UTC day, by the prices of both pools and of the judge; counted by
    each processor since its start."""
    file: Path
    """One line is added for each sample: counted features, never the prompt. Of one processor."""
    judge: JudgeConfig
