"""Where a pool's marks belong now: as the config says, or from the SLO and measurements. Pure.

The argument (reference: Gamma(d+1) at rate c/S, see `queueing`): the last request that is let into
the queue waits for high_water departures from c slots. What counts is the percentile of that wait
that the SLO names, not its mean; it must fit into what the server's own time to a first token
leaves of the SLO.
"""

from typing import Literal, NamedTuple

from extproc.admission.queueing import MOST_SLOTS, high_water, joined_percentile_s, low_water
from extproc.admission.service_times import ENOUGH, Running, ServiceTimes

Wanted = int | Literal["auto"]

MOST_WAITING = 1_000
"""No `auto` mark is above this."""
# Of a pool of which nothing is known yet: one request for so many slots may wait. Few: a queue that
# is too short costs some percent of the goodput, one that is too long costs nearly all of it.
_SLOTS_PER_WAITING = 16
# More than that keeps no slot busier; and where answers fail at once for a while, and so look
# short, it bounds how many wait when they are long again.
_MOST_PER_SLOT = 2
_ALWAYS_SENSIBLE = 16
_SHORTEST_S = 0.001
# Standard deviations above the mean that a server's time to a first token is taken to need.
_DEVIATIONS = 2.0


class Marks(NamedTuple):
    """In waiting requests. `hard`: from so many on not even a body is read. `why`: for a person."""

    high: int
    low: int
    hard: int
    why: str


class Slo(NamedTuple):
    ttft_s: float
    percentile: float
    """Of the requests that find all slots busy, the share that is to hold it."""


def needed_s(first_token_s: Running) -> float:
    """What the server itself is taken to need of the TTFT. 0 while nothing was measured."""
    return first_token_s.mean + _DEVIATIONS * first_token_s.deviation


def marks(
    high: Wanted,
    low: Wanted,
    hard: Wanted,
    *,
    slo: Slo,
    slots: int,
    service_s: ServiceTimes,
    first_token_s: Running,
) -> Marks:
    """`service_s`: how long slots are held; `first_token_s`: from a slot to the first token. What
    is not `auto` is taken as it is."""
    if high == "auto":
        high, why = _auto_high(slo, slots, service_s, first_token_s)
    else:
        why = "high_water is set in the config"
    if low == "auto":
        low = low_water(high)
    else:
        low, why = min(low, high), f"{why}; low_water is set in the config"
    if hard == "auto":
        hard = high + slots
    return Marks(high, low, max(hard, high), why)


def _auto_high(
    slo: Slo, slots: int, service_s: ServiceTimes, first_token_s: Running
) -> tuple[int, str]:
    if service_s.count < ENOUGH:
        high = max(slots // _SLOTS_PER_WAITING, 1)
        return high, (
            f"one waiting request for {_SLOTS_PER_WAITING} slots: a guess, until {ENOUGH} answers "
            f"were measured ({service_s.count} so far)"
        )
    own_s = needed_s(first_token_s)
    limit_s = max(slo.ttft_s - own_s, 0.0)
    mean_s, scv = max(service_s.mean, _SHORTEST_S), service_s.scv
    slots = min(slots, MOST_SLOTS)
    fitting = high_water(slots, mean_s, scv, limit_s, slo.percentile)
    high = min(fitting, max(_MOST_PER_SLOT * slots, _ALWAYS_SENSIBLE), MOST_WAITING)
    one_more_s = joined_percentile_s(high, slots, mean_s, slo.percentile, scv)
    return high, (
        f"{slots} slots are held {mean_s:.3g} s each (scv {scv:.2g}); a TTFT of "
        f"{slo.ttft_s:g} s less {own_s:.2g} s for the server leaves {limit_s:.3g} s to wait. With "
        f"one more waiting, the last one's wait would be {one_more_s:.3g} s at "
        f"p{slo.percentile * 100:g}"
    )
