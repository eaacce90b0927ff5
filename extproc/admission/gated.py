"""A pool behind its gate in the long run: who is served in time, who is shed. Pure.

The queue of `limiter` with the two marks of `gate` as a Markov chain that is solved, not simulated.
Never says anything of a pool that is not in its steady state, or of clients that come back.
"""

from dataclasses import dataclass

from extproc.admission.gate import Gate
from extproc.admission.queueing import MOST_WAITING, erlang_b, joined_within


@dataclass(frozen=True, slots=True)
class Gated:
    """Shares of all arrivals, and the load that is carried."""

    in_time: float
    """Admitted, and the wait is within the limit: the goodput."""
    late: float
    """Admitted, and waits longer."""
    shed: float
    utilisation: float
    """Mean share of the slots that are busy."""


def gated(
    slots: int,
    arrivals_per_s: float,
    mean_service_s: float,
    wait_limit_s: float,
    marks: tuple[int, int],
    scv: float = 1.0,
) -> Gated:
    """What becomes of Poisson arrivals at a gate with `marks` (high, low) before `slots`.

    Exact for exponential service. For others an approximation: only the waits know the `scv`; with
    a high mark of 0 it is exact again (Erlang's loss formula needs the mean alone).

    States: n requests in the pool and an open gate (n up to c + high); those of a shedding gate,
    with low + 1 to high waiting. Shedding is a path of departures alone, so these are equally
    likely, each lambda S / c times as likely as the open state with `high` waiting. The open ones
    follow downwards, since across each cut as many go up as down:
    lambda p(n) = c / S (p(n + 1) + its shedding twin).
    """
    high, low = marks
    Gate(high, low)  # refuses marks that make no sense
    if high > MOST_WAITING:
        raise ValueError(f"the high mark must be at most {MOST_WAITING:,}, got {high:,}")
    joined_within(0, slots, mean_service_s, wait_limit_s, scv)  # refuses what makes no sense
    offered = arrivals_per_s * mean_service_s
    blocked = erlang_b(slots, offered)
    load = offered / slots

    # `here`: the open state at hand, at first that with `high` waiting; `twin`: a shedding state.
    # Only their ratios count, so each step may scale all of them, and nothing overflows.
    here = 1.0 / (1.0 + load)
    twin = load * here if high > low else 0.0
    shed = here + twin * (high - low)
    in_time = late = 0.0
    for depth in range(high - 1, -1, -1):
        here += twin if depth >= low else 0.0
        twin, shed, in_time, late = twin * load, shed * load, in_time * load, late * load
        fits = joined_within(depth, slots, mean_service_s, wait_limit_s, scv)
        in_time += here * fits
        late += here * (1.0 - fits)
        total = in_time + late + shed
        here, twin, shed = here / total, twin / total, shed / total
        in_time, late = in_time / total, late / total
    # At hand is now all slots busy and nobody waiting. It is to the states below it as in the loss
    # system: as `blocked` to the rest.
    in_time = in_time * blocked + here * (1.0 - blocked)
    late, shed = late * blocked, shed * blocked
    total = in_time + late + shed
    carried = (in_time + late) / total
    return Gated(in_time / total, late / total, shed / total, utilisation=load * carried)
