"""The exact cache: a look-up for each request, and storing the answer that follows a miss."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from extproc.cache.key import exact_key
from extproc.cache.memory import MemoryStore
from extproc.cache.request_policy import CachePolicy, cache_policy
from extproc.openai import Answer, AnswerReader, Request, UnreadAnswer


class Hit(NamedTuple):
    answer: Answer
    age_s: float
    ttl_s: float
    """Below 0: it has expired."""

    @property
    def status(self) -> str:
        """The member of a Cache-Status header (RFC 9211)."""
        return f"forebay; hit; ttl={math.floor(self.ttl_s)}"


class Fill:
    """An answer on its way that is to be stored, if it turns out to be whole and `pool`'s."""

    def __init__(
        self, store: MemoryStore, key: bytes, pool: str, ttl_s: float, reader: AnswerReader
    ) -> None:
        self._store = store
        self._key = key
        self._pool = pool
        self._ttl_s = ttl_s
        self._reader = reader

    def wants(self, headers: Mapping[str, str]) -> bool:
        """Whether the body of an answer with these headers is of interest: a fallback's answer is
        not stored as the wanted pool's, and a compressed one is not read."""
        return (
            headers.get(":status") == "200"
            and headers.get("x-forebay-served-by") == self._pool
            and "content-encoding" not in headers
        )

    def feed(self, piece: bytes) -> bool:
        """Whether the answer has ended by itself."""
        return self._reader.feed(piece)

    def end(self) -> bool:
        """After the last piece: whether the answer was stored."""
        answer = self._reader.end()
        return answer is not None and self._store.put(self._key, answer, self._ttl_s)


class Lookup(NamedTuple):
    """`status` is the member of a Cache-Status header (RFC 9211) that tells of it. `stale`: an
    answer that has expired, beside a miss."""

    result: Literal["hit", "miss", "bypass"]
    status: str
    hit: Hit | None = None
    fill: Fill | None = None
    stale: Hit | None = None


class ExactCache:
    """A store and the rules by which requests use it."""

    def __init__(
        self, max_bytes: int, ttl_s: float, stale_s: float, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self.store = MemoryStore(max_bytes, stale_s, clock)

    def configure(self, max_bytes: int, ttl_s: float, stale_s: float) -> None:
        """Go on with other numbers; what is stored keeps its time."""
        self._ttl_s = ttl_s
        self.store.configure(max_bytes, stale_s)

    def look_up(
        self,
        *,
        scope: str,
        pool: str,
        model: str,
        request: Request,
        body: bytes,
        cache_control: str,
    ) -> Lookup:
        """`scope`, `pool`: see exact_key. `model`: what the pool serves now. `body`: what `request`
        was parsed from."""
        policy = cache_policy(cache_control, request.temperature)
        key = None
        if policy.may_store:
            key = exact_key(
                scope=scope,
                pool=f"{pool}={model}",
                path=request.path,
                body=body,
                members=request.members,
            )
        if key is None:
            return Lookup("bypass", "forebay; fwd=bypass")
        hit = self._hit(key, policy)
        if hit is not None and hit.ttl_s > 0:
            return Lookup("hit", hit.status, hit=hit)
        choices = request.sequences
        reader = AnswerReader(request.path, streamed=request.stream, choices=choices)
        fill = Fill(self.store, key, pool, self._ttl_s, reader)
        reason = "uri-miss" if policy.may_read else "request"
        return Lookup("miss", f"forebay; fwd={reason}", fill=fill, stale=hit)

    def _hit(self, key: bytes, policy: CachePolicy) -> Hit | None:
        """What is stored and may be given again. An entry that turns out not to be an answer that
        can be given again goes."""
        entry, now = self.store.get(key), self._clock()
        if entry is None or not policy.may_read or not policy.takes(now - entry.stored_at):
            return None
        answer = entry.answer
        if isinstance(answer, UnreadAnswer):
            answer = answer.read()
            if answer is None:
                self.store.drop(key)
                return None
            self.store.replace(key, answer)
        return Hit(answer, now - entry.stored_at, entry.expires_at - now)
