"""How long a shed client is told to stay away.

Clients that were shed together must not come back together: each is told a later moment than the
one before, by as much as the pool needs for one request. So they return at the rate that the pool
can serve, as if they had queued outside.
"""

import math

_SHORTEST_S = 1
LONGEST_S = 60
_JITTER = 0.1
# Multiples of the golden ratio, without their whole parts, fill [0, 1) evenly from the first on.
_GOLDEN = (math.sqrt(5) - 1) / 2


class RetryAfter:
    """One tenant's at one pool. `_next_at`: the earliest moment that has not been given to anybody.
    `_again`: where in the whole time, from 0 to 1, the last one was sent when all were given."""

    __slots__ = ("_again", "_next_at")

    def __init__(self) -> None:
        self._next_at = -math.inf
        self._again = 0.0

    def tell(self, *, now: float, drain_s: float, turn_s: float, uniform: float) -> int:
        """Whole seconds, from 1 to 60 and never below the drain time (up to 60).

        `drain_s`: until the queue has drained to its low mark. `turn_s`: what the pool needs for
        one request, service time / slots. `uniform`: a random number in [0, 1).
        """
        earliest = now + drain_s
        at = max(self._next_at, earliest)
        wait_s = at - now
        if wait_s * (1 + _JITTER) <= LONGEST_S:
            self._next_at = at + turn_s
            wait_s *= 1 + _JITTER * uniform
        else:  # all moments are given: each of them again, by leaps
            self._again = (self._again + _GOLDEN) % 1
            first_s = min(drain_s, LONGEST_S)
            wait_s = first_s + (LONGEST_S - first_s) * self._again
        return min(max(math.ceil(wait_s), _SHORTEST_S), LONGEST_S)
