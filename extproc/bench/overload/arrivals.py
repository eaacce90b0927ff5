"""When requests come and how long their answers are to be. Pure: a seed gives the same always.

Arrivals are a Poisson process and lengths are geometric, so that a server of c places is M/M/c.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log
from random import Random

_BLOCK = 20


@dataclass(frozen=True)
class Phase:
    rate_per_s: float
    seconds: float


@dataclass(frozen=True)
class Arrival:
    due_s: float
    """Since the beginning."""
    tokens: int
    """Length of its answer."""


def arrivals(phases: Sequence[Phase], mean_tokens: float, seed: int) -> list[Arrival]:
    """All of all phases, one phase after the other, in order."""
    gaps, sizes = Random(f"gaps {seed}"), lengths(mean_tokens, Random(f"lengths {seed}"))
    made: list[Arrival] = []
    began_s = 0.0
    for phase in phases:
        due_s = began_s + gaps.expovariate(phase.rate_per_s)
        while due_s < began_s + phase.seconds:
            made.append(Arrival(due_s, next(sizes)))
            due_s += gaps.expovariate(phase.rate_per_s)
        began_s += phase.seconds
    return made


def lengths(mean: float, random: Random) -> Iterator[int]:
    """Geometric, 1 or more. Each 20 in a row cover the whole distribution (one draw from each
    twentieth of it, shuffled), so that the mean of a short run strays less; a single one of them is
    distributed as if drawn alone."""
    while True:
        shares = [(place + random.random()) / _BLOCK for place in range(_BLOCK)]
        random.shuffle(shares)
        for share in shares:
            yield 1 if mean <= 1 else 1 + floor(log(1 - share) / log(1 - 1 / mean))
