"""The gate of one pool: shedding with hysteresis between two marks. A rule without a clock.

It never counts anything itself: the limiter tells it the queue depth.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Gate:
    """Shedding starts when a request would join behind `high_water` or more waiting requests, and
    ends when `low_water` or fewer wait. Depths are in requests.

    `high_water: 0` means no queue at all: a request that finds no free slot is shed at once.
    """

    high_water: int
    low_water: int
    shedding: bool = False

    def __post_init__(self) -> None:
        self.set_marks(self.high_water, self.low_water)

    def set_marks(self, high_water: int, low_water: int) -> None:
        if not 0 <= low_water <= high_water:
            raise ValueError(
                f"marks must be 0 <= low_water <= high_water, got low_water={low_water} "
                f"high_water={high_water}"
            )
        self.high_water, self.low_water = high_water, low_water

    def refuses(self, depth: int) -> bool:
        """Whether a request that would join behind `depth` waiting ones is to be shed."""
        self.drained_to(depth)
        if depth >= self.high_water:
            self.shedding = True
        return self.shedding

    def drained_to(self, depth: int) -> None:
        """Tell the gate that `depth` requests wait now."""
        if depth <= self.low_water:
            self.shedding = False
