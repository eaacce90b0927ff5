"""What a cache asks of whatever keeps its answers.

A store never raises in an exchange and never makes it wait longer than the store's own limit: what
fails is a miss, or is not stored. Only `purge`, which an operator asks for, says that it failed.
"""

from typing import Literal, NamedTuple, Protocol

from extproc.cache.scope import Scope
from extproc.openai import Answer, UnreadAnswer


class StoreUnavailable(Exception):
    """The message says what was not done, and what to do."""


class Entry(NamedTuple):
    answer: Answer
    age_s: float
    ttl_s: float
    """0 or below: it has expired, and is kept for the case that the request would be shed."""


class Found(NamedTuple):
    entry: Entry | None
    epoch: bytes
    """Of the scope, when it was looked for; `put` wants it back. A purge begins a new one: what was
    asked of a model before it is not stored after it."""


class Stats(NamedTuple):
    """Since the start, but for what is kept now."""

    kind: Literal["memory", "redis"]
    state: Literal["up", "away"] = "up"
    entries: int | None = None
    """None: only the server knows."""
    used_bytes: int | None = None
    stored: int = 0
    evicted: int = 0
    """From memory, to make room."""
    failed: dict[str, int] = {}  # noqa: RUF012 - never written
    """What was a miss, or not stored, by why: see redis_link."""


class Store(Protocol):
    async def get(self, scope: Scope, key: bytes) -> Found:
        """What is kept under the key. It may have expired. Reading prolongs nothing."""
        ...

    def put(
        self,
        scope: Scope,
        key: bytes,
        epoch: bytes,
        answer: Answer | UnreadAnswer,
        ttl_s: float,
        stale_s: float,
    ) -> bool:
        """Keep an answer for `ttl_s`, and `stale_s` more as one that has expired. Whether it was
        taken: never waits, so it may still be lost on its way."""
        ...

    def drop(self, scope: Scope, key: bytes) -> None:
        """Never waits. One that is not there is no error."""
        ...

    async def purge(self, scope: Scope) -> None:
        """From the moment that it returns nothing that was stored in the scope before is given
        again, by any processor; see Scope.covers. Raises StoreUnavailable."""
        ...

    def stats(self) -> Stats: ...

    async def close(self) -> None: ...
