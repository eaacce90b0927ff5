"""The words between an OnnxEmbedder and its worker process: each a length, then so many bytes.

From the owner: a text in UTF-8. From the worker: one letter, then what it stands for. The worker
speaks first, READY or FAILED; then it answers each text, in order, with VECTOR or TOO_LONG.
"""

import struct

LENGTH = struct.Struct(">I")

READY = b"r"
"""Then a JSON object: model, dimensions."""
FAILED = b"f"
"""Then why, in UTF-8; the process ends."""
VECTOR = b"v"
"""Then the numbers, float32 of this machine's byte order."""
TOO_LONG = b"l"
"""Then the number of tokens, in decimal."""


def frame(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content
