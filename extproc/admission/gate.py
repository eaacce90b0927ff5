"""The gate of one class of requests: shedding with hysteresis between two marks. A rule only.

It never counts anything itself and has no clock: the limiter tells it the queue depth and the time.
"""

from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Gate:
    """Shedding starts when a request would join behind `high_water` or more waiting requests, and
    ends when `low_water` or fewer wait, but not before it has lasted `dwell_s`. Depths are in
    requests, `now` in seconds of any steady clock.

    `high_water: 0` means no queue at all: a request that finds no free slot is shed at once.
    """

    high_water: int
    low_water: int
    dwell_s: float = 0.0
    shedding: bool = False
    transitions: int = 0
    """How often shedding has begun or ended."""
    _since: float = -inf

    def __post_init__(self) -> None:
        self.set_marks(self.high_water, self.low_water)

    def set_marks(self, high_water: int, low_water: int) -> None:
        if not 0 <= low_water <= high_water:
            raise ValueError(
                f"marks must be 0 <= low_water <= high_water, got low_water={low_water} "
                f"high_water={high_water}"
            )
        self.high_water, self.low_water = high_water, low_water

    def refuses(self, depth: int, now: float) -> bool:
        """Whether a request that would join behind `depth` waiting ones is to be shed."""
        self.drained_to(depth, now)
        if depth >= self.high_water and not self.shedding:
            self.shedding, self._since = True, now
            self.transitions += 1
        return self.shedding

    def drained_to(self, depth: int, now: float) -> None:
        """Tell the gate that `depth` requests wait now."""
        if self.shedding and depth <= self.low_water and now - self._since >= self.dwell_s:
            self.shedding = False
            self.transitions += 1
