"""Model servers that refuse what the gateway itself sends: counted, and told to the operator.

No client can mend these, and a next tier may hide them, so that nobody else would say anything.
Never says more than pool and status: what a server writes of a credential is not for a log.
"""

import logging
from collections.abc import Callable, Collection, Iterable, MutableMapping

_log = logging.getLogger(__name__)

_AGAIN_S = 60.0
_ELSEWHERE = "they are at another address, or want TLS"
WHY = {
    **dict.fromkeys(("301", "302", "303", "307", "308"), _ELSEWHERE),
    "401": "the credential of its cluster is wrong or missing",
    "402": "its account has no credit",
    "403": "its credential may not do this",
    "404": "they do not know the pool's `model`, or the path",
    "405": "the path is none of theirs",
}
STATUSES = frozenset(WHY)


class Refused:
    """`counted`: by pool and status. `clock`: in seconds."""

    def __init__(
        self, counted: MutableMapping[str | tuple[str, ...], float], clock: Callable[[], float]
    ) -> None:
        self._counted = counted
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def saw(self, tries: Iterable[tuple[str, str]], pools: Collection[str]) -> None:
        """Tries of one exchange: cluster and status. `pools`: those of the config, by which alone
        anything is counted."""
        for pool, status in tries:
            if pool not in pools or status not in STATUSES:
                continue
            self._counted[pool, status] += 1
            now = self._clock()
            if now - self._said.get((pool, status), -_AGAIN_S) >= _AGAIN_S:
                self._said[pool, status] = now
                _log.error(
                    "pool %s: its servers refuse what the gateway sends (status %s): %s",
                    pool,
                    status,
                    WHY[status],
                )
