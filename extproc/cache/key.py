"""The key of the exact cache: a hash of all that can change the answer, within its scope. Pure."""

import hashlib
from typing import Any

import orjson

# These change how an answer is sent or filed, not what it says.
_NO_MATTER = frozenset(("stream", "stream_options", "user", "metadata"))

# orjson makes a float of an integer beyond 64 bits, and rounds long fractions: two bodies that
# differ only there must not share a key.
_LONG_NUMBER = b"0" * 15
# Each digit to 0, all else to a space: so a plain search finds a long number, twenty times faster
# than a pattern does.
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))


def exact_key(
    *, scope: str, pool: str, path: str, body: bytes, members: dict[str, Any]
) -> bytes | None:
    """32 bytes; None for a body that nests too deep to be written in one form.

    `scope`: within whom the answer may be shared, a tenant for example. `pool`: whose answer it is.
    `body`: a request that was parsed, so a JSON object without duplicate keys among those that
    matter; `members`: orjson's view of it. Key order, whitespace and escapes do not matter; unknown
    members do.
    """
    try:
        canonical = orjson.dumps(
            {name: value for name, value in members.items() if name not in _NO_MATTER},
            option=orjson.OPT_SORT_KEYS,
        )
    except orjson.JSONEncodeError:  # it reads 1,024 levels and writes 254
        return None
    exact = body if _LONG_NUMBER in body.translate(_DIGITS) else b""
    parts = (scope.encode(), pool.encode(), path.encode(), canonical, exact)
    told = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hashlib.blake2b(told, digest_size=32).digest()
