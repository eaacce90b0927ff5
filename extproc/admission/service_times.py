"""How long a pool's slots are held, as measured: a running mean and variance. Pure."""

import math

# How many values count in the long run, at least: enough for a variance to mean something, few
# enough to follow a change soon.
_MEMORY = 50
# Of a large pool as many as its slots give in so many turns: answers that began together end
# together, and a shorter memory would know only the latest of them.
_TURNS = 2
ENOUGH = 20
"""Below so many values the variance says nothing."""


class Running:
    """Mean and variance of the last `memory` values, exponentially weighted; of the first ones,
    evenly.

    West's update (1979): with weight w the mean moves by w * d, d = value - mean, and the variance
    becomes (1 - w) (variance + w d^2).
    """

    __slots__ = ("_variance", "count", "mean", "memory")

    def __init__(self) -> None:
        self.memory = _MEMORY
        self.count = 0
        self.mean = 0.0
        self._variance = 0.0

    def add(self, value: float) -> float:
        """The weight that it got: what else is averaged over the same values goes by it."""
        count = self.count = self.count + 1
        weight = 1 / (count if count < self.memory else self.memory)
        distance = value - self.mean
        moved = weight * distance
        self.mean += moved
        self._variance = (1 - weight) * (self._variance + moved * distance)
        return weight

    @property
    def deviation(self) -> float:
        """The standard deviation, in the values' unit."""
        return math.sqrt(self._variance)

    @property
    def scv(self) -> float:
        """Variance over mean squared: 0 all alike, 1 exponential. 1 while little is known."""
        if self.count < ENOUGH or self.mean <= 0:
            return 1.0
        return self._variance / self.mean**2


class ServiceTimes:
    """How long requests hold the slots of one pool.

    The mean is slot-seconds held per request that ended (Little's law), not that of the ended
    requests' own times: in a pool that has just filled, or whose answers just became longer, those
    that have ended are the short ones, and their mean would be far too small for as long as the
    longest take. The spread is that of the requests' own times.
    """

    __slots__ = ("_at", "_own_s", "_since_end_s", "mean")

    def __init__(self) -> None:
        self._own_s = Running()
        self.mean = 0.0
        """Slot-seconds per request."""
        self._since_end_s = 0.0  # slot-seconds
        self._at = 0.0

    def set_slots(self, slots: int) -> None:
        self._own_s.memory = max(_MEMORY, _TURNS * slots)

    def were_held(self, slots: int, now: float) -> None:
        """So many, since the last call; `now` in seconds of any steady clock."""
        self._since_end_s += slots * (now - self._at)
        self._at = now

    def ended(self, lasted_s: float) -> None:
        """A request gives back its slots after so many seconds."""
        self.mean += self._own_s.add(lasted_s) * (self._since_end_s - self.mean)
        self._since_end_s = 0.0

    @property
    def count(self) -> int:
        return self._own_s.count

    @property
    def scv(self) -> float:
        return self._own_s.scv
