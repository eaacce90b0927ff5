"""How long a pool's slots are held, as measured: a running mean and variance. Pure."""

import math

# The weight of one new value in the long run: about the last hundred values count. Small enough
# for a variance to mean something, large enough to follow a change within a few turns of the slots.
_WEIGHT = 0.02
ENOUGH = 20
"""Below so many values the variance says nothing."""


class Running:
    """Mean and variance of the last values, exponentially weighted; of the first ones, evenly.

    West's update (1979): with weight w the mean moves by w * d, d = value - mean, and the variance
    becomes (1 - w) (variance + w d^2).
    """

    __slots__ = ("_variance", "count", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._variance = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        weight = max(_WEIGHT, 1 / self.count)
        distance = value - self.mean
        self.mean += weight * distance
        self._variance = (1 - weight) * (self._variance + weight * distance * distance)

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
