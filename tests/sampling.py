"""How much of a long search a test run does: a sample in `make test`, all of it in `make soak`.

A sample must still be able to fail. FOREBAY_THOROUGH=1 asks for all.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

THOROUGH = os.environ.get("FOREBAY_THOROUGH") == "1"

T = TypeVar("T")


def examples(sample: int) -> int:
    """How many examples hypothesis draws, anew in each run: so many, or fifty times as many."""
    return sample * 50 if THOROUGH else sample


def cases(sample: Sequence[T], rest: Sequence[T]) -> list[T]:
    """Cases of a slow test: those of the sample, or also the rest."""
    return [*sample, *(rest if THOROUGH else ())]
