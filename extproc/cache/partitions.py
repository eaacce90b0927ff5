"""Questions whose answers are kept, to be found by similarity: by scope, and within it by all that
an answer depends on beside the question. Searched exactly; never across two partitions.

Pure. A candidate is a question that sounds alike, no more: whether its answer may be given is for
others to decide.
"""

from collections import OrderedDict
from collections.abc import Callable
from sys import getsizeof
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from extproc.cache.scope import Scope

Vector: TypeAlias = NDArray[np.float32]
"""(d,), of length 1."""

_FIRST_ROWS = 16
# What an item and a partition cost beside vectors and prompts. Estimates.
_ITEM_BYTES = 500
_PARTITION_BYTES = 1500
# Two vectors of the same text can be this far from a product of 1.
_ROUNDING = 1e-6


class PartitionKey(NamedTuple):
    """`digest`: of the pool and its model, the path, the system prompt, the parameters, and the
    embedder: see Secret.digest. `epoch`: as the store told it (Found.epoch)."""

    scope: Scope
    digest: bytes
    epoch: bytes


class Item:
    """`id`: the exact key of the answer. `parsed`: for whoever judges candidates, to keep what it
    made of the prompt; not kept anywhere else."""

    __slots__ = ("expires_at", "id", "parsed", "prompt")

    def __init__(self, id: bytes, prompt: str, expires_at: float) -> None:
        self.id = id
        self.prompt = prompt
        self.expires_at = expires_at
        self.parsed: object = None


class Candidate(NamedTuple):
    similarity: float
    """The cosine, at most 1."""
    item: Item


class Partitions(Protocol):
    async def nearest(
        self, key: PartitionKey, vector: Vector, at_least: float, most: int = 8
    ) -> list[Candidate]:
        """The most similar first; none below `at_least`, and none that has expired."""
        ...

    def add(self, key: PartitionKey, item: Item, vector: Vector) -> None:
        """Instead of one with the same id. Never waits."""
        ...

    def drop(self, id: bytes) -> None:
        """Its answer is gone. One that is not there is no error."""
        ...

    def stats(self) -> "PartitionStats": ...


class PartitionStats(NamedTuple):
    """What this processor holds."""

    partitions: int
    entries: int
    used_bytes: int


class Partition:
    """`items[n]` has row n of the vectors. Use MemoryPartitions."""

    def __init__(self, key: PartitionKey, dimensions: int) -> None:
        self.key = key
        self.read_to = b""
        """For redis_partitions: up to where it is a copy."""
        self._vectors = np.empty((_FIRST_ROWS, dimensions), np.float32)
        self._items: list[Item] = []
        self._rows: dict[bytes, int] = {}
        self._prompt_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def dimensions(self) -> int:
        return self._vectors.shape[1]

    @property
    def used_bytes(self) -> int:
        items = self._prompt_bytes + len(self._items) * _ITEM_BYTES
        return self._vectors.nbytes + items + _PARTITION_BYTES

    @property
    def ids(self) -> list[bytes]:
        """In the order in which they were added."""
        return list(self._rows)

    def add(self, item: Item, vector: Vector) -> None:
        self.drop(item.id)
        row = len(self._items)
        if row == len(self._vectors):
            self._resize(2 * row)
        self._vectors[row] = vector
        self._items.append(item)
        self._rows[item.id] = row
        self._prompt_bytes += getsizeof(item.prompt)

    def drop(self, id: bytes) -> bool:
        """Whether it was there. The last row takes its place."""
        row = self._rows.pop(id, None)
        if row is None:
            return False
        self._prompt_bytes -= getsizeof(self._items[row].prompt)
        last = self._items.pop()
        if last.id != id:
            self._items[row] = last
            self._vectors[row] = self._vectors[len(self._items)]
            self._rows[last.id] = row
        if len(self._vectors) > _FIRST_ROWS and len(self._items) <= len(self._vectors) // 4:
            self._resize(len(self._vectors) // 2)
        return True

    def _resize(self, rows: int) -> None:
        vectors = np.empty((rows, self.dimensions), np.float32)
        vectors[: len(self._items)] = self._vectors[: len(self._items)]
        self._vectors = vectors

    def nearest(self, vector: Vector, at_least: float, most: int) -> list[Candidate]:
        """Those that have expired too."""
        products = self._vectors[: len(self._items)] @ vector
        rows = np.flatnonzero(products >= at_least - _ROUNDING)
        if len(rows) > most:
            rows = rows[np.argpartition(products[rows], -most)[-most:]]
        rows = rows[np.argsort(-products[rows], kind="stable")]
        return [Candidate(min(float(products[row]), 1.0), self._items[row]) for row in rows]

    def expired(self, now: float) -> list[bytes]:
        return [item.id for item in self._items if item.expires_at <= now]


class MemoryPartitions:
    """All state is `_partitions`, the least recently used first, `_bytes`, their sum, and `_where`:
    in which one an id is. Give its `drop` to the MemoryStore that keeps the answers."""

    def __init__(self, max_entries: int, max_bytes: int, clock: Callable[[], float]) -> None:
        """`max_entries`: of one partition; `max_bytes`: of all."""
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.clock = clock
        self._partitions: OrderedDict[tuple[Scope, bytes], Partition] = OrderedDict()
        self._where: dict[bytes, Partition] = {}
        self._bytes = 0

    async def nearest(
        self, key: PartitionKey, vector: Vector, at_least: float, most: int = 8
    ) -> list[Candidate]:
        return self.nearest_now(key, vector, at_least, most)

    def nearest_now(
        self, key: PartitionKey, vector: Vector, at_least: float, most: int
    ) -> list[Candidate]:
        partition = self.get(key)
        if partition is None or partition.dimensions != len(vector):
            return []
        found = partition.nearest(vector, at_least, most)
        now = self.clock()
        if any(candidate.item.expires_at <= now for candidate in found):
            self._drop_from(partition, partition.expired(now))
            found = partition.nearest(vector, at_least, most)
        return found

    def get(self, key: PartitionKey) -> Partition | None:
        """One of an earlier epoch goes: what is in it was purged."""
        partition = self._partitions.get(key[:2])
        if partition is None:
            return None
        if partition.key.epoch != key.epoch:
            self._remove(partition)
            return None
        self._partitions.move_to_end(key[:2])
        return partition

    def open(self, key: PartitionKey, dimensions: int) -> Partition:
        """The one there is, or a new one: also where that was of another embedder."""
        partition = self.get(key)
        if partition is not None and partition.dimensions != dimensions:
            self._remove(partition)
            partition = None
        if partition is None:
            partition = self._partitions[key[:2]] = Partition(key, dimensions)
            self._bytes += partition.used_bytes
        return partition

    def add(self, key: PartitionKey, item: Item, vector: Vector) -> None:
        self.drop(item.id)
        partition = self.open(key, len(vector))
        if len(partition) >= self.max_entries:
            self._drop_from(partition, partition.expired(self.clock()) or partition.ids[:1])
            partition = self.open(key, len(vector))  # it may have gone with its last item
        before = partition.used_bytes
        partition.add(item, vector)
        self._bytes += partition.used_bytes - before
        self._where[item.id] = partition
        self._make_room()

    def drop(self, id: bytes) -> None:
        partition = self._where.get(id)
        if partition is not None:
            self._drop_from(partition, [id])

    def stats(self) -> PartitionStats:
        return PartitionStats(len(self._partitions), len(self._where), self._bytes)

    def _drop_from(self, partition: Partition, ids: list[bytes]) -> None:
        before = partition.used_bytes
        for id in ids:
            if partition.drop(id):
                del self._where[id]
        self._bytes += partition.used_bytes - before
        if not len(partition) and not partition.read_to:
            self._remove(partition)

    def _make_room(self) -> None:
        """The least recently used partition goes as a whole; the only one loses its older half."""
        while self._bytes > self.max_bytes and self._partitions:
            partition = next(iter(self._partitions.values()))
            if len(self._partitions) > 1 or len(partition) < 2:
                self._remove(partition)
            else:
                self._drop_from(partition, partition.ids[: len(partition) // 2])

    def _remove(self, partition: Partition) -> None:
        del self._partitions[partition.key[:2]]
        self._bytes -= partition.used_bytes
        for id in partition.ids:
            del self._where[id]
