"""How likely a text is one whose answer depends on more than the text: logistic regression on its
embedding and on the signs that rules found. Pure; the numbers lie beside this file.

They were fitted by `python -m tests.train_stateless` on texts that are in `tests/unit/data`. They
hold for the embedder that they were fitted with, and for no other.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extproc.cache.semantic.stateful_doubts import SUSPECT
from extproc.cache.semantic.stateful_signs import Sign
from extproc.cache.semantic.stateful_text import Text

FILE = Path(__file__).with_name("stateful_model.json")

# How much each kind of number weighs before the fit, whose penalty is the same for all.
_EMBEDDING_SCALE = 5.0
_SIGN_SCALE = 2.0

FEATURES = (*(sign.name for sign in SUSPECT), "how to", "quotes", "carries")
"""What the rules tell the model, in this order, behind the embedding."""


class StatefulModel(NamedTuple):
    embedder: str
    """The `model` of the embedder whose vectors it takes."""
    threshold: float
    """From this probability on a text is taken as stateful."""
    weights: NDArray[np.float64]
    """(dimensions + len(FEATURES),)"""
    bias: float
    texts: tuple[str, ...]
    """Of which sets it was made: tests/unit/data/stateful-NAME.jsonl. Rules were written with these
    in view, too."""

    def probability(self, embedding: NDArray[np.float32], text: Text, signs: list[Sign]) -> float:
        """`embedding`: (dimensions,), unit length. `signs`: what `suspect(text)` found."""
        row = features(embedding, text, signs)
        return float(1 / (1 + np.exp(-(row @ self.weights + self.bias))))


def features(embedding: NDArray[np.float32], text: Text, signs: list[Sign]) -> NDArray[np.float64]:
    """(dimensions + len(FEATURES),)"""
    found = {sign.name for sign in signs}
    told = [name in found for name in FEATURES[:-3]] + [text.how_to, text.quotes, text.carries]
    return np.concatenate(
        (
            embedding.astype(np.float64) * _EMBEDDING_SCALE,
            np.array(told, dtype=np.float64) * _SIGN_SCALE,
        )
    )


@cache
def shipped() -> StatefulModel:
    """ValueError: the file was made for other rules than these."""
    content: dict[str, Any] = json.loads(FILE.read_text())
    if tuple(content["features"]) != FEATURES:
        raise ValueError(
            f"{FILE}: made for other rules than these; run python -m tests.train_stateless"
        )
    return StatefulModel(
        content["embedder"],
        content["threshold"],
        np.array(content["weights"], dtype=np.float64),
        content["bias"],
        tuple(content["texts"]),
    )
