"""A store in this process: bounded in bytes, least recently used out first, entries with an end."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from extproc.cache.scope import Scope
from extproc.cache.store import Entry, Found, Stats
from extproc.openai import Answer, UnreadAnswer

# What an entry costs beside its answer: key, objects, dictionaries. An estimate.
_OVERHEAD_BYTES = 500


class _Kept(NamedTuple):
    scope: Scope
    answer: Answer | UnreadAnswer
    stored_at: float
    expires_at: float
    gone_at: float


class MemoryStore:
    """All state is `_entries`, the least recently used first, `_bytes`, their sum, and `_keys`, the
    same keys by scope."""

    def __init__(
        self,
        max_bytes: int,
        clock: Callable[[], float],
        dropped: Callable[[bytes], None] = lambda key: None,
    ) -> None:
        """`dropped` is told the key of each entry that leaves."""
        self.max_bytes = max_bytes
        self.dropped = dropped
        self._clock = clock
        self._entries: OrderedDict[bytes, _Kept] = OrderedDict()
        self._keys: dict[Scope, set[bytes]] = {}
        self._bytes = 0
        self._stored = self._evicted = self._purges = 0
        self._epoch = b"0"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        return self._bytes

    async def get(self, scope: Scope, key: bytes) -> Found:
        """Never suspends."""
        kept = self._entries.get(key)
        if kept is None or kept.scope != scope:
            return Found(None, self._epoch)
        now = self._clock()
        if kept.gone_at <= now:
            self._forget(key)
            return Found(None, self._epoch)
        answer = kept.answer
        if isinstance(answer, UnreadAnswer):  # most are never asked for again, and stay so
            answer = answer.read()
            if answer is None:
                self._forget(key)
                return Found(None, self._epoch)
            self._replace(key, kept, answer)
        else:
            self._entries.move_to_end(key)
        return Found(Entry(answer, now - kept.stored_at, kept.expires_at - now), self._epoch)

    def put(
        self,
        scope: Scope,
        key: bytes,
        epoch: bytes,
        answer: Answer | UnreadAnswer,
        ttl_s: float,
        stale_s: float,
    ) -> bool:
        """An answer that is larger than the whole store is not kept."""
        size = answer.size + _OVERHEAD_BYTES
        if size > self.max_bytes or epoch != self._epoch:
            return False
        if key in self._entries:
            self._forget(key)
        self._make_room(size)
        now = self._clock()
        expires_at = now + ttl_s
        self._entries[key] = _Kept(scope, answer, now, expires_at, expires_at + stale_s)
        self._keys.setdefault(scope, set()).add(key)
        self._bytes += size
        self._stored += 1
        return True

    def configure(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._make_room(0)

    def drop(self, scope: Scope, key: bytes) -> None:
        kept = self._entries.get(key)
        if kept is not None and kept.scope == scope:
            self._forget(key)

    async def purge(self, scope: Scope) -> None:
        """Of answers on their way those of other scopes are not stored either: rare, and simple."""
        self._purges += 1
        self._epoch = b"%d" % self._purges
        for other in [other for other in self._keys if scope.covers(other)]:
            for key in list(self._keys[other]):
                self._forget(key)

    def stats(self) -> Stats:
        return Stats(
            "memory",
            entries=len(self._entries),
            used_bytes=self._bytes,
            stored=self._stored,
            evicted=self._evicted,
        )

    async def close(self) -> None:
        pass

    def _replace(self, key: bytes, kept: _Kept, answer: Answer) -> None:
        """Keep the same answer in another form, for as long as it had. It may be larger than the
        store; then it is the last to go, and the caller has it."""
        self._bytes += answer.size - kept.answer.size
        self._entries[key] = kept._replace(answer=answer)
        self._entries.move_to_end(key)
        self._make_room(0)

    def _make_room(self, size: int) -> None:
        while self._bytes + size > self.max_bytes:
            self._forget(next(iter(self._entries)))
            self._evicted += 1

    def _forget(self, key: bytes) -> None:
        kept = self._entries.pop(key)
        self._bytes -= kept.answer.size + _OVERHEAD_BYTES
        keys = self._keys[kept.scope]
        keys.discard(key)
        if not keys:
            del self._keys[kept.scope]
        self.dropped(key)
