"""What tokens cost."""

from typing import Self

from pydantic import model_validator

from extproc.config.tree import mapping
from extproc.config.values import Block, Usd


class PriceConfig(Block):
    """US dollars per million tokens."""

    input: Usd
    cached_input: Usd
    """Of the input, what the prefix cache had. Left out: as input."""
    output: Usd
    """Left out where a pool serves embeddings: nothing is put out."""

    @model_validator(mode="before")
    @classmethod
    def _cached_as_input(cls, given: object) -> object:
        block = mapping(given)
        return {"cached_input": block["input"], **block} if "input" in block else given

    @model_validator(mode="after")
    def _cached_is_cheaper(self) -> Self:
        if self.cached_input > self.input:
            raise ValueError(
                f"cached_input ({self.cached_input:g}) must not be above input ({self.input:g})"
            )
        return self
