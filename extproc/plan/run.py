"""What queueing theory advises for one pool. Pure: numbers in, a result of JSON's types out."""

from dataclasses import asdict, dataclass

from extproc.admission.gated import gated
from extproc.admission.queueing import (
    high_water,
    joined_percentile_s,
    knee_per_s,
    low_water,
    mean_wait_s,
    slots_needed,
    wait_beyond,
    wait_percentile_s,
)
from extproc.bench.report import Result

# Of the picture, in multiples of what the slots can carry.
_WAIT_LOADS = [number / 100 for number in range(2, 100, 2)]
_GOODPUT_LOADS = [number / 20 for number in range(1, 61)]


@dataclass(frozen=True, slots=True)
class Asked:
    """Times in seconds, rates in requests per second."""

    slots: int
    service_mean_s: float
    service_scv: float
    arrivals_per_s: float
    ttft_s: float
    prefill_s: float
    percentile: float
    marks: tuple[int, int] | None = None
    """The gateway's present ones, high and low."""


def plan(asked: Asked) -> Result:
    """The advice. ValueError, in words, for numbers that make no sense."""
    limit_s = asked.ttft_s - asked.prefill_s
    if limit_s <= 0:
        raise ValueError(
            f"prefill ({asked.prefill_s:g} s) takes all of the TTFT ({asked.ttft_s:g} s): "
            "no wait can hold that; shorten prompts, or allow more"
        )
    slots, service_s, scv = asked.slots, asked.service_mean_s, asked.service_scv
    rate, percentile = asked.arrivals_per_s, asked.percentile
    full = slots / service_s
    knee = knee_per_s(slots, service_s, scv, limit_s, percentile)
    high = high_water(slots, service_s, scv, limit_s, percentile)
    marks = {"recommended": (high, low_water(high))}
    if asked.marks is not None:
        marks["present"] = asked.marks
    return {
        "plan": {**asdict(asked), "wait_limit_s": limit_s},
        "load": rate * service_s / slots,
        "without_a_limit": {
            "waiting_share": wait_beyond(slots, rate, service_s, 0.0, scv),
            "wait_mean_s": _finite(mean_wait_s(slots, rate, service_s, scv)),
            "wait_percentile_s": _finite(
                wait_percentile_s(slots, rate, service_s, percentile, scv)
            ),
        },
        "knee": {"arrivals_per_s": knee, "load": knee * service_s / slots},
        "marks": {
            name: {
                "high_water": pair[0],
                "low_water": pair[1],
                "last_in_queue_waits_s": pair[0]
                and joined_percentile_s(pair[0] - 1, slots, service_s, percentile, scv),
                **asdict(gated(slots, rate, service_s, limit_s, pair, scv)),
            }
            for name, pair in marks.items()
        },
        "one_more_waits_s": joined_percentile_s(high, slots, service_s, percentile, scv),
        "slots_needed": slots_needed(rate, service_s, scv, limit_s, percentile),
        "waits": [
            {
                "load": load,
                "mean_s": mean_wait_s(slots, load * full, service_s, scv),
                "percentile_s": wait_percentile_s(slots, load * full, service_s, percentile, scv),
            }
            for load in _WAIT_LOADS
        ],
        "goodput": [
            {
                "load": load,
                **{
                    name: gated(slots, load * full, service_s, limit_s, pair, scv).in_time
                    for name, pair in marks.items()
                },
            }
            for load in _GOODPUT_LOADS
        ],
    }


def _finite(wait_s: float) -> float | None:
    """JSON has no infinity: None for a queue that grows without end."""
    return wait_s if wait_s < float("inf") else None
