"""What an answer or a question looks like in a store that others can reach: bytes that prove under
which name, in which epoch and by whom they were written. Anything else is none, whoever put it
there. Pure.
"""

import struct
from typing import NamedTuple

import numpy as np

from extproc.cache.key import Secret
from extproc.cache.partitions import Item, Vector
from extproc.openai import CHAT, COMPLETIONS, Answer

# Change it whenever the layout or Answer.members changes: what an older or a newer processor wrote
# is then a miss for this one.
VERSION = 1
_PATHS = (CHAT, COMPLETIONS)
_PURPOSE = b"answer"
_PROOF_BYTES = 16
# Version, path, tokens of prompt and completion, stored at (ms since 1970), ttl (ms), epoch length.
_HEAD = struct.Struct(">BBIIQQB")


class Decoded(NamedTuple):
    answer: Answer
    stored_at_s: float
    ttl_s: float


def encode(
    secret: Secret, name: bytes, epoch: bytes, answer: Answer, stored_at_s: float, ttl_s: float
) -> bytes:
    """`stored_at_s`: since 1970. The head, the epoch, a proof (a hash of all, keyed by the secret),
    and the answer as JSON."""
    head = _HEAD.pack(
        VERSION,
        _PATHS.index(answer.path),
        min(answer.prompt_tokens, 2**32 - 1),
        min(answer.completion_tokens, 2**32 - 1),
        int(stored_at_s * 1000),
        int(ttl_s * 1000),
        len(epoch),
    )
    proof = secret.digest(_PURPOSE, name, head, epoch, answer.members, size=_PROOF_BYTES)
    return b"".join((head, epoch, proof, answer.members))


def decode(secret: Secret, name: bytes, epoch: bytes, value: bytes) -> Decoded | None:
    """None: damaged, of another version, of another epoch, or not written under this name by one
    who knows the secret."""
    if len(value) < _HEAD.size or value[0] != VERSION:
        return None
    told: tuple[int, ...] = _HEAD.unpack_from(value)
    _, path, prompt, completion, stored_at_ms, ttl_ms, length = told
    at = _HEAD.size + length
    members = value[at + _PROOF_BYTES :]
    if value[_HEAD.size : at] != epoch or path >= len(_PATHS):
        return None
    head, proof = value[: _HEAD.size], value[at : at + _PROOF_BYTES]
    if secret.digest(_PURPOSE, name, head, epoch, members, size=_PROOF_BYTES) != proof:
        return None
    answer = Answer(_PATHS[path], members, prompt, completion)
    return Decoded(answer, stored_at_ms / 1000, ttl_ms / 1000)


_ITEM_PURPOSE = b"question"
_ITEM_HEAD = struct.Struct(">B32sQI")
"""Version, id, expires at (ms since 1970), bytes of the prompt; then proof, prompt, vector."""


def encode_item(secret: Secret, name: bytes, item: Item, vector: Vector) -> bytes:
    """`name`: of the partition. The prompt stands in it in the clear."""
    prompt = item.prompt.encode("utf-8", "surrogatepass")
    head = _ITEM_HEAD.pack(VERSION, item.id, int(item.expires_at * 1000), len(prompt))
    row = vector.astype("<f4").tobytes()
    proof = secret.digest(_ITEM_PURPOSE, name, head, prompt, row, size=_PROOF_BYTES)
    return b"".join((head, proof, prompt, row))


def decode_item(secret: Secret, name: bytes, value: bytes) -> tuple[Item, Vector] | None:
    """None: see decode."""
    at = _ITEM_HEAD.size + _PROOF_BYTES
    if len(value) < at or value[0] != VERSION:
        return None
    told: tuple[int, bytes, int, int] = _ITEM_HEAD.unpack_from(value)
    _, id, expires_at_ms, length = told
    head, proof = value[: _ITEM_HEAD.size], value[_ITEM_HEAD.size : at]
    prompt, row = value[at : at + length], value[at + length :]
    if secret.digest(_ITEM_PURPOSE, name, head, prompt, row, size=_PROOF_BYTES) != proof:
        return None
    text = prompt.decode("utf-8", "surrogatepass")
    return Item(id, text, expires_at_ms / 1000), np.frombuffer(row, "<f4").astype(np.float32)
