"""A store that processors share: Redis 7 or Valkey, without modules.

One key per answer, written with its end; an answer is only given if it was written under that very
name, in the epoch that Redis tells in the same breath, by one who knows the secret. A purge sets a
new epoch: one write, which all processors see at once. What was purged is unreachable from then on,
and leaves Redis at its end. Answers lie there as JSON in the clear; their names reveal nothing.
All keys of a tenant have one hash tag, so that epoch and answer can be read together in a cluster.
"""

import os
import time
from collections.abc import Callable
from typing import cast

from extproc.cache.codec import decode, encode
from extproc.cache.key import Secret
from extproc.cache.scope import Scope
from extproc.cache.store import Entry, Found, Stats, StoreUnavailable
from extproc.openai import Answer, UnreadAnswer
from extproc.redis_link import Away, Link

_EPOCH_BYTES = 8
# An epoch outlives all that was stored in it, and the wait for a model's answer before that. One
# that is lost (evicted, expired) is never made again: then its answers are lost too, not revived.
_EPOCH_S = 3600
_OVERHEAD_BYTES = 500


class RedisStore:
    def __init__(self, link: Link, secret: Secret, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970, as all processors have it. One that is wrong makes answers
        look older or younger; their end in Redis is by Redis' own clock."""
        self._link = link
        self._secret = secret
        self._clock = clock
        self._stored = 0
        self._beginning: dict[bytes, bytes] = {}
        """Epochs that are being written, by name."""
        self._on_way: dict[bytes, bytes] = {}
        """What is being written, by name: who has the last piece of an answer may ask again at
        once."""

    async def get(self, scope: Scope, key: bytes) -> Found:
        name, epochs = answer_name(self._secret, scope, key), epoch_names(self._secret, scope)
        # Taken before: what is being written now may have been by the time that Redis has told.
        on_way, beginning = self._on_way.get(name), [self._beginning.get(of) for of in epochs]
        try:
            value, *told = _texts(await self._link.ask("MGET", name, *epochs), 1 + len(epochs))
        except Away:
            return Found(None, b"")
        epoch = b"".join(
            text or begun or self._begin(of)
            for of, text, begun in zip(epochs, told, beginning, strict=True)
        )
        if len(epoch) != len(epochs) * _EPOCH_BYTES:  # not ours: nothing is stored until it ends
            return Found(None, b"")
        value = on_way or value
        if value is None:
            return Found(None, epoch)
        found = decode(self._secret, name, epoch, value)
        if found is None:
            self._link.write(("UNLINK", name), size=_OVERHEAD_BYTES)
            return Found(None, epoch)
        age_s = max(self._clock() - found.stored_at_s, 0.0)
        return Found(Entry(found.answer, age_s, found.ttl_s - age_s), epoch)

    def _begin(self, name: bytes) -> bytes:
        """An epoch that nobody has begun. If another processor is faster, what is asked of a model
        now is stored in ours, and not found."""
        if name in self._beginning:
            return self._beginning[name]
        epoch = self._beginning[name] = os.urandom(_EPOCH_BYTES)

        def over(_: bool) -> None:
            del self._beginning[name]

        begin = ("SET", name, epoch, "NX", "PX", _EPOCH_S * 1000)
        if not self._link.write(begin, size=_OVERHEAD_BYTES, over=over):
            over(False)
        return epoch

    def put(
        self,
        scope: Scope,
        key: bytes,
        epoch: bytes,
        answer: Answer | UnreadAnswer,
        ttl_s: float,
        stale_s: float,
    ) -> bool:
        """Only what can be given again is sent. An empty epoch: Redis was away."""
        if not epoch:
            return False
        read = answer.read() if isinstance(answer, UnreadAnswer) else answer
        if read is None:
            return False
        name = answer_name(self._secret, scope, key)
        value = encode(self._secret, name, epoch, read, self._clock(), ttl_s)
        last_ms = max(int((ttl_s + stale_s) * 1000), 1)
        epoch_ms = _EPOCH_S * 1000 + 2 * last_ms
        keep = [("PEXPIRE", of, epoch_ms, "GT") for of in epoch_names(self._secret, scope)]
        size = len(value) + _OVERHEAD_BYTES

        def over(written: bool) -> None:
            self._stored += written
            if self._on_way.get(name) is value:
                del self._on_way[name]

        taken = self._link.write(("SET", name, value, "PX", last_ms), *keep, size=size, over=over)
        if taken:
            self._on_way[name] = value
        return taken

    def drop(self, scope: Scope, key: bytes) -> None:
        name = answer_name(self._secret, scope, key)
        self._on_way.pop(name, None)
        self._link.write(("UNLINK", name), size=_OVERHEAD_BYTES)

    async def purge(self, scope: Scope) -> None:
        name = epoch_names(self._secret, scope)[-1]
        epoch = os.urandom(_EPOCH_BYTES)
        try:
            await self._link.insist("SET", name, epoch, "PX", _EPOCH_S * 1000)
        except Away as away:
            raise StoreUnavailable(
                f"Redis did not take the purge ({away}): what was stored may still be given. "
                f"Purge again when it answers. {self._link.settings.advice}"
            ) from None

    def stats(self) -> Stats:
        state = "away" if self._link.is_open else "up"
        failed = {str(why): count for why, count in self._link.failed.items()}
        return Stats("redis", state, stored=self._stored, failed=failed)

    async def close(self) -> None:
        await self._link.close()


def _texts(reply: object, count: int) -> list[bytes | None]:
    """Raises Away for what is no answer to MGET."""
    texts = cast("list[object]", reply) if isinstance(reply, list) else []
    if len(texts) != count or not all(isinstance(text, bytes | None) for text in texts):
        raise Away
    return cast("list[bytes | None]", texts)


def answer_name(secret: Secret, scope: Scope, key: bytes) -> bytes:
    """The scope is in the key already; it stands here too, so that no mistake can mix scopes."""
    of = secret.digest(b"name", scope.encode(), key)
    return b"forebay:{%b}:answer:%b" % (hash_tag(secret, scope), of.hex().encode())


def epoch_names(secret: Secret, scope: Scope) -> list[bytes]:
    """Of the tenant and, in user scope, of the user too: an answer has to be of both."""
    tag = hash_tag(secret, scope)
    names = [b"forebay:{%b}:epoch" % tag]
    if scope.kind == "user":
        names.append(b"%b:%b" % (names[0], secret.digest(b"user", scope.encode()).hex().encode()))
    return names


def hash_tag(secret: Secret, scope: Scope) -> bytes:
    """What all names of a tenant have in common: a cluster keeps them on one node."""
    of = Scope("tenant", scope.tenant, "") if scope.kind == "user" else scope
    return secret.digest(b"tenant", of.encode()).hex().encode()
