"""Under which key an answer is filed: a hash of all that can change it, within its scope. Pure.

Two requests that might be answered otherwise must never share a key; a miss costs only money. The
hashes are keyed by a secret, so whoever reads a store cannot guess a prompt and try its key.
"""

import hashlib
from typing import Any

import orjson

from extproc.cache.scope import Scope

# These change how an answer is sent or filed, not what it says.
_NO_MATTER = frozenset(("stream", "stream_options", "user", "metadata"))

# Of these 1, 1.0 and 1e0 are one number to every server, and so are 0 and -0.0. Elsewhere they may
# not be: a number in a tool's schema or a template's argument becomes text in the prompt.
_NUMBERS = frozenset(
    ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
    + ("repetition_penalty", "length_penalty", "max_tokens", "max_completion_tokens")
    + ("min_tokens", "n", "best_of", "seed")
)

_MOST_BEGUN = 4096

_EXACT = 1e15  # below it every whole float is one integer, and short of _LONG_NUMBER

# orjson makes a float of an integer beyond 64 bits, and rounds long fractions: two bodies that
# differ only there must not share a key.
_LONG_NUMBER = b"0" * 15
# Each digit to 0, all else to a space: so a plain search finds a long number, twenty times faster
# than a pattern does.
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))


class Secret:
    """What all hashes of a cache are keyed by. Processors that share a store share it."""

    __slots__ = ("_begun", "_key")

    def __init__(self, secret: bytes) -> None:
        """`secret`: of any length; what is short can be guessed."""
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"forebay-cache").digest()
        self._begun: dict[tuple[Scope, str, str], hashlib.blake2b] = {}

    def _hasher(self, purpose: bytes, size: int) -> "hashlib.blake2b":
        return hashlib.blake2b(key=self._key, person=purpose, digest_size=size)

    def exact(self, scope: Scope, pool: str, path: str) -> "hashlib.blake2b":
        """For exact_key: a hasher that has been told these. Kept, since the same few come again."""
        begun = self._begun.get((scope, pool, path))
        if begun is None:
            if len(self._begun) >= _MOST_BEGUN:
                self._begun.clear()
            begun = self._hasher(b"exact", 32)
            begun.update(_told((scope.encode(), pool.encode(), path.encode())))
            self._begun[scope, pool, path] = begun
        return begun.copy()

    def digest(self, purpose: bytes, *parts: bytes, size: int = 16) -> bytes:
        """`size` bytes; `purpose`: at most 16. Digests of different purposes have nothing in
        common."""
        hasher = self._hasher(purpose, size)
        hasher.update(_told(parts))
        return hasher.digest()


def exact_key(
    secret: Secret, scope: Scope, pool: str, path: str, body: bytes, members: dict[str, Any]
) -> bytes | None:
    """32 bytes; None for a body that nests too deep to be written in one form.

    `pool`: whose answer it is. `body`: a request that was parsed, so a JSON object without
    duplicate keys among those that matter; `members`: orjson's view of it. Key order, whitespace
    and escapes do not matter; unknown members do. Unicode counts as it is: a tokenizer tells apart
    what normal forms (NFC, NFD) would merge.
    """
    kept: dict[str, Any] = {}
    for name, value in members.items():
        if name in _NO_MATTER:
            continue
        if value.__class__ is float and name in _NUMBERS and value.is_integer():
            value = int(value) if abs(value) < _EXACT else value
        kept[name] = value
    try:
        canonical = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # it reads 1,024 levels and writes 254
        return None
    exact = body if has_long_number(body) else b""
    hasher = secret.exact(scope, pool, path)
    hasher.update(_told((canonical, exact)))
    return hasher.digest()


def has_long_number(body: bytes) -> bool:
    """Whether orjson may have rounded one."""
    return _LONG_NUMBER in body.translate(_DIGITS)


def _told(parts: tuple[bytes, ...]) -> bytes:
    """With their lengths, so that no two lists of parts look the same."""
    return b"".join([b"%d:%b" % (len(part), part) for part in parts])
