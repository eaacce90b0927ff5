"""Partitions that processors share: a stream in Redis for each. Every processor keeps copies, and
brings one up to date when it searches it, by reading what is newer than what it has.

The prompts of what is stored lie in Redis in the clear (names and vectors reveal little, a prompt
all): that is so only where the semantic cache is on. A stream's name holds the epoch, so a purge,
which begins a new one, leaves it unreachable at once; Redis drops it at its end.
"""

from contextlib import suppress
from typing import Any

from extproc.cache.codec import decode_item, encode_item
from extproc.cache.key import Secret
from extproc.cache.partitions import (
    Candidate,
    Item,
    MemoryPartitions,
    PartitionKey,
    PartitionStats,
    Vector,
)
from extproc.cache.redis_store import hash_tag
from extproc.redis_link import Away, Link

# Read for one look-up: about 250 KB of MiniLM's vectors. A processor that has just started needs
# several look-ups until its copy is whole; what it lacks are misses.
_READ_AT_ONCE = 128
_OVERHEAD_BYTES = 200


class RedisPartitions:
    def __init__(self, link: Link, secret: Secret, copies: MemoryPartitions) -> None:
        """`copies` has a clock of seconds since 1970, as the items have."""
        self._link = link
        self._secret = secret
        self._copies = copies

    async def nearest(
        self, key: PartitionKey, vector: Vector, at_least: float, most: int = 8
    ) -> list[Candidate]:
        """Empty where Redis is away: nothing could be fetched for a candidate either."""
        if not key.epoch:
            return []
        name, read_to = self._name(key), self._read_to(key)
        after = b"(" + read_to if read_to else b"-"
        try:
            newer = await self._link.ask("XRANGE", name, after, "+", "COUNT", _READ_AT_ONCE)
        except Away:
            return []
        if newer and self._read_to(key) == read_to:  # else another look-up has read it meanwhile
            with suppress(LookupError, TypeError, ValueError, AttributeError):  # no stream's reply
                self._copy(key, name, newer, len(vector))
        return self._copies.nearest_now(key, vector, at_least, most)

    def _read_to(self, key: PartitionKey) -> bytes:
        copy = self._copies.get(key)
        return copy.read_to if copy is not None else b""

    def _copy(self, key: PartitionKey, name: bytes, newer: list[Any], dimensions: int) -> None:
        now = self._copies.clock()
        for _, fields in newer:
            found = decode_item(self._secret, name, fields.get(b"q", b""))
            if found is not None and len(found[1]) == dimensions and found[0].expires_at > now:
                self._copies.add(key, *found)
        self._copies.open(key, dimensions).read_to = newer[-1][0]

    def add(self, key: PartitionKey, item: Item, vector: Vector) -> None:
        """All processors find it, this one too, when they read."""
        if not key.epoch:
            return
        name = self._name(key)
        value = encode_item(self._secret, name, item, vector)
        last_ms = max(int((item.expires_at - self._copies.clock()) * 1000), 1)
        self._link.write(
            ("XADD", name, "MAXLEN", self._copies.max_entries, "*", "q", value),
            ("PEXPIRE", name, last_ms, "NX"),
            ("PEXPIRE", name, last_ms, "GT"),
            size=len(value) + _OVERHEAD_BYTES,
        )

    def drop(self, id: bytes) -> None:
        """From this processor's copy; the others find out as it did."""
        self._copies.drop(id)

    def stats(self) -> PartitionStats:
        return self._copies.stats()

    def _name(self, key: PartitionKey) -> bytes:
        of = self._secret.digest(b"partition", key.scope.encode(), key.digest, key.epoch)
        return b"forebay:{%b}:like:%b" % (hash_tag(self._secret, key.scope), of.hex().encode())
