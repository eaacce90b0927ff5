"""Whether a text says all that its answer depends on. Fail-closed: in doubt it does not.

An answer to "What did I just order?" or "Is it raining?" must never be given to another question,
nor again. Signs in the words refuse by themselves; a model of many texts refuses what they miss.
"""

import numpy as np
from numpy.typing import NDArray

from extproc.cache.semantic.stateful_model import shipped
from extproc.cache.semantic.stateful_rules import certain, suspect
from extproc.cache.semantic.stateful_text import normalise


def why_stateful(
    text: str, embedding: NDArray[np.float32] | None = None, embedder: str = ""
) -> str | None:
    """Why the answer to `text` depends on more than the text, in words for a person; None if it
    does not. None of the text is quoted.

    embedding  Of the same text, (dimensions,), unit length.
    embedder   The `model` of the embedder that it came from. The shipped model knows one embedder:
               with another, or with none, every doubtful sign refuses, which refuses about a third
               of the texts that are stateless.
    """
    seen = normalise(text)
    sign = certain(seen)
    if sign is not None:
        return sign.why
    doubts = suspect(seen)
    model = shipped()
    if embedding is None or embedder != model.embedder:
        return doubts[0].why if doubts else None
    probability = model.probability(embedding, seen, doubts)
    if probability < model.threshold:
        return None
    why = doubts[0].why if doubts else "it reads like a request about the moment or the asker"
    return f"{why} (probability {probability:.2f})"
