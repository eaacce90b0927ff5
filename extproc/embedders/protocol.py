"""What an embedder is, and how it says that it has no vector. Never raises anything else."""

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""(dimensions,), of unit length: the dot product of two is their cosine."""

Why = Literal["starting", "busy", "time_limit", "too_long", "failed", "closed"]


class EmbedderUnavailable(Exception):
    """There is no vector for this text now. `why` is one word of a fixed set, fit for a metric's
    label; the message is for a person. Neither holds any of the text, nor a credential."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why: Why = why


class Embedder(Protocol):
    """Made without waiting; `start` it within a running loop and `close` it in the same."""

    @property
    def model(self) -> str:
        """Whose vectors these are: those of different models must never be compared. Empty until
        `embed` has returned for the first time."""
        ...

    @property
    def dimensions(self) -> int:
        """0 until `embed` has returned for the first time."""
        ...

    def start(self) -> None:
        """Begin to get ready, in the background. Returns at once."""
        ...

    async def embed(self, text: str) -> Vector:
        """The vector of the whole text. A text that the model cannot read whole is refused: two
        that differ only behind its limit would get the same vector.

        EmbedderUnavailable: there is none in time. What was begun is not waited for."""
        ...

    async def close(self) -> None:
        """End all that `start` began; whoever waits gets EmbedderUnavailable."""
        ...


def unit_vector(values: Sequence[float] | Vector) -> Vector:
    """The same direction, of length 1. ValueError: the values are not numbers, not all finite, or
    all zero."""
    vector = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # then the length is not finite
        length = float(np.sqrt(vector @ vector)) if vector.ndim == 1 else 0.0
    if not np.isfinite(length) or length == 0.0:
        raise ValueError("not a row of finite numbers that are not all zero")
    return (vector / length).astype(np.float32)
