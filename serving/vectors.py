"""The answer to a request for embeddings, around vectors that no model has made.

Pure: the same input has the same vector, on every machine; texts that mean the same have not.
"""

import base64
import hashlib
import struct

import orjson

from serving.answers import Answer
from serving.protocol import EmbeddingsAsk

DIMENSIONS = 16


class Vectors(Answer):
    """One vector of length 1 for each input. Never streamed."""

    def __init__(self, asked: EmbeddingsAsk, *, answer_id: str, model: str, created: int) -> None:
        super().__init__(asked.ask, answer_id=answer_id, model=model, created=created)
        self._asked = asked

    def whole(self, choices: list[tuple[int, str]], cached_tokens: int) -> bytes:
        """OpenAI's JSON; its usage has no completion tokens."""
        encode = _as_base64 if self._asked.base64 else list[float]
        data = [
            {"index": index, "object": "embedding", "embedding": encode(vector(content))}
            for index, content in enumerate(self._asked.contents)
        ]
        usage = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens}
        return orjson.dumps({**self._constant, "object": "list", "data": data, "usage": usage})


def vector(content: str | list[int]) -> tuple[float, ...]:
    """Of length 1; by the content alone."""
    told = content if isinstance(content, str) else " ".join(map(str, content))
    digest = hashlib.blake2b(told.encode(), digest_size=2 * DIMENSIONS).digest()
    numbers = [n - 32767.5 for n in struct.unpack(f"<{DIMENSIONS}H", digest)]
    length = sum(n * n for n in numbers) ** 0.5
    return tuple(n / length for n in numbers)


def _as_base64(values: tuple[float, ...]) -> str:
    """As vLLM and OpenAI write it: 32-bit floats, the lowest byte first."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
