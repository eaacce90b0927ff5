"""What makes two prompts share KV blocks: equal content from the beginning on.

Pure and cheap: one hash per block. Must never keep a prompt.
"""

from collections.abc import Sequence

CHARACTERS_PER_TOKEN = 4


def block_hashes(
    content: str | Sequence[int], block_size: int, salt: str | None = None
) -> list[int]:
    """A hash for each full block of `block_size` tokens; each covers all that stands before it.

    content  text, of which four characters are one token, or token ids
    salt     prompts with different salts share nothing (`cache_salt` in a request)

    Python's own hash, of 64 bits and different in each process: two different blocks out of a
    million in the cache meet with a probability below 1e-7.
    """
    width = block_size * (CHARACTERS_PER_TOKEN if isinstance(content, str) else 1)
    hashes: list[int] = []
    parent = hash((type(content) is str, salt))
    for start in range(0, len(content) - width + 1, width):
        piece = content[start : start + width]
        parent = hash((parent, piece if isinstance(piece, str) else tuple(piece)))
        hashes.append(parent)
    return hashes
