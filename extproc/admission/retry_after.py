"""How long a shed client is told to stay away. A pure function of the measured drain time."""

import math

_SHORTEST_S = 1
_LONGEST_S = 60
# Clients that were shed together must not come back together.
_JITTER = 0.5


def retry_after_s(drain_s: float, uniform: float) -> int:
    """Whole seconds for a Retry-After header: the drain time, up to half as much again by
    `uniform` (a random number in [0, 1)), and always between 1 and 60."""
    spread = drain_s * (1 + _JITTER * uniform)
    return min(max(math.ceil(spread), _SHORTEST_S), _LONGEST_S)
