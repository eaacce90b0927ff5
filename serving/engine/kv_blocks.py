"""The KV cache in blocks: who holds how many, and which contents are still there to be shared.

Only counts and hashes, no memory. Must never know why somebody needs a block, or the time.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice


@dataclass(slots=True)
class Holding:
    """The blocks of one sequence.

    shared     hashes of those that others may share, in the order of the prompt
    private    number of the others: not full, of the answer, or a second copy of the same content
    published  leading blocks of the prompt that are full and were offered for sharing
    """

    shared: list[int] = field(default_factory=list)
    private: int = 0
    published: int = 0

    @property
    def count(self) -> int:
        return len(self.shared) + self.private


class KvBlocks:
    """`total` blocks, each of which is in exactly one place: blank, idle (its content is known but
    nobody uses it: the oldest goes first when blocks are short), in use by one or more holdings
    under its hash, or private to one holding.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._blank = total
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._users: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that could be taken now."""
        return self._blank + len(self._idle)

    def hits(self, hashes: Sequence[int], most: int) -> int:
        """How many of the first `most` blocks are here, up to the first that is not."""
        for index, content in enumerate(islice(hashes, most)):
            if content not in self._users and content not in self._idle:
                return index
        return min(most, len(hashes))

    def fits(self, blocks: int, hashes: Sequence[int], hits: int) -> bool:
        """Whether a new holding of so many blocks, of which the first `hits` are here, would fit.
        A hit that nobody uses counts among the free ones until it is taken."""
        idle_hits = sum(content in self._idle for content in islice(hashes, hits))
        return blocks - hits + idle_hits <= self.free

    def share(self, holding: Holding, hashes: Sequence[int], hits: int) -> None:
        """Take the first `hits` blocks, which are here, into a new holding."""
        for content in islice(hashes, hits):
            self._idle.pop(content, None)
            self._users[content] = self._users.get(content, 0) + 1
            holding.shared.append(content)
        holding.published = hits

    def grow(self, holding: Holding, blocks: int) -> bool:
        """Give it so many blocks in all; False, and nothing changes, if they are not free."""
        wanted = blocks - holding.count
        if wanted > self.free:
            return False
        for _ in range(wanted - self._blank):
            self._idle.popitem(last=False)
            self._blank += 1
        self._blank -= max(0, wanted)
        holding.private += max(0, wanted)
        return True

    def publish(self, holding: Holding, hashes: Sequence[int], full_blocks: int) -> None:
        """Let others share the first `full_blocks` blocks (as far as they are the prompt's). As in
        vLLM this is done when a step begins: a twin in the same step shares them already."""
        until = min(full_blocks, len(hashes))
        for content in islice(hashes, holding.published, until):
            if content not in self._users and content not in self._idle:
                self._users[content] = 1
                holding.shared.append(content)
                holding.private -= 1
        holding.published = max(holding.published, until)

    def release(self, holding: Holding) -> None:
        """Give all back. A prompt's end is forgotten before its beginning, which more share."""
        self._blank += holding.private
        for content in reversed(holding.shared):
            self._users[content] -= 1
            if not self._users[content]:
                del self._users[content]
                self._idle[content] = None
        holding.shared.clear()
        holding.private = holding.published = 0
