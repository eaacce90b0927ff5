"""A store in this process: bounded in bytes, least recently used out first, entries with an end."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from extproc.openai import Answer, UnreadAnswer

# What an entry costs beside its answer: key, objects, dictionary. An estimate.
_OVERHEAD_BYTES = 400


class Entry(NamedTuple):
    answer: Answer | UnreadAnswer
    stored_at: float
    expires_at: float


class MemoryStore:
    """All state is `_entries`, the least recently used first, and `_bytes`, their sum."""

    def __init__(self, max_bytes: int, stale_s: float, clock: Callable[[], float]) -> None:
        """`stale_s`: how long an entry is kept after it has expired."""
        self.max_bytes = max_bytes
        self._stale_s = stale_s
        self._clock = clock
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def get(self, key: bytes) -> Entry | None:
        """What is kept under the key; it may have expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_at + self._stale_s <= self._clock():
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, answer: Answer | UnreadAnswer, ttl_s: float) -> bool:
        """Whether it was kept: an answer that is larger than the whole store is not."""
        size = answer.size + _OVERHEAD_BYTES
        if size > self.max_bytes:
            return False
        if key in self._entries:
            self.drop(key)
        self._make_room(size)
        now = self._clock()
        self._entries[key] = Entry(answer, now, now + ttl_s)
        self._bytes += size
        return True

    def replace(self, key: bytes, answer: Answer) -> None:
        """Keep the same answer in another form, for as long as it had."""
        entry = self._entries[key]
        self._bytes += answer.size - entry.answer.size
        self._entries[key] = entry._replace(answer=answer)
        self._make_room(0)

    def configure(self, max_bytes: int, stale_s: float) -> None:
        self.max_bytes, self._stale_s = max_bytes, stale_s
        self._make_room(0)

    def _make_room(self, size: int) -> None:
        while self._bytes + size > self.max_bytes:
            self.drop(next(iter(self._entries)))

    def drop(self, key: bytes) -> None:
        self._bytes -= self._entries.pop(key).answer.size + _OVERHEAD_BYTES
