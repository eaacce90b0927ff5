"""`forebay bench overload`: first what the server can do, then each contender at each load, in one
run.

One contender is loaded at a time, all of them with the same arrivals. No bar is ever adjusted to
what is measured.
"""

import os
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from extproc.bench.bars import verdict
from extproc.bench.lab import BenchError, Lab, say
from extproc.bench.overload.contenders import CONTENDERS
from extproc.bench.overload.load import MOST_OPEN
from extproc.bench.overload.measures import Measured, best, recovery_s, service
from extproc.bench.overload.setup import Setup
from extproc.bench.overload.turns import PATIENCE_S, Turns
from extproc.bench.report import Result, machine

SWEEP = (0.7, 0.9, 1.1, 1.3)
"""Loads at which capacity is looked for, in multiples of slots / mean service time."""
TEST_LOAD = 3.0
LIGHT_LOAD = 0.3
"""After the overload. Both in multiples of capacity."""
_SWEPT = ("envoy", "forebay")
_BETWEEN_TURNS_S = 1.0

# Above these, times say something about this machine and not about the contender.
_MOST_LATE_OF_SLO = 0.05
_MOST_OF_A_CORE = 0.8
_MOST_OF_THE_MACHINE = 0.9
# Goodput of so many answers strays by 3%: the bar is 5% below capacity.
_FEWEST_ANSWERS = 800


def run(lab: Lab, *, setup: Setup, names: Sequence[str], loads: Sequence[float]) -> Result:
    """`loads`: in multiples of capacity. The overload test, at TEST_LOAD, is always among them."""
    loads = sorted({*loads, TEST_LOAD})
    # Where neither is to run, whoever does must do.
    swept = [name for name in _SWEPT if name in names] or list(names)
    lasts_s = _lasts_s(setup, len(swept), len(names), len(loads))
    say(f"this takes about {ceil(lasts_s / 60)} min")
    turns = Turns(lab, setup, names)
    sweep, served = _sweep(turns, setup, swept)
    capacity = best(sweep)
    per_s = capacity["goodput_per_s"]
    if not per_s:
        raise BenchError(
            "no answer of the sweep met the SLO, so there is no capacity to compare to"
        )
    say(f"capacity: {per_s:.2f} answers/s")
    told: dict[str, list[Measured]] = {name: [] for name in names}
    for load in loads:
        for name in names:
            measured = _test(turns, setup, name, load, per_s)
            told[name].append(measured)
            _say(name, f"{load:g} of capacity", measured)
    tests = {
        name: turn for name, each in told.items() for turn in each if turn["load"] == TEST_LOAD
    }
    return {
        "bench": "overload",
        "machine": machine(),
        "settings": settings(setup),
        "service": served,
        "sweep": sweep,
        "capacity": {
            "per_s": per_s,
            "contender": capacity["contender"],
            "load_of_nominal": capacity["load_of_nominal"],
            "of_nominal": per_s / setup.nominal_per_s,
        },
        "contenders": {
            name: {
                "what": CONTENDERS[name].what,
                "settings": CONTENDERS[name].settings(setup.slots, setup.slo_s),
                "turns": each,
            }
            for name, each in told.items()
        },
        "bars": bars(tests, setup.slo_s),
        "doubt": doubt(
            [*sweep, *(turn for each in told.values() for turn in each)],
            setup.slo_s,
            test_answers=per_s * setup.test_seconds,
        ),
    }


def _sweep(turns: Turns, setup: Setup, names: Sequence[str]) -> tuple[list[Measured], Measured]:
    """The points, and the service times as measured at the first, where hardly anybody waits."""
    points: list[Measured] = []
    served: Measured = {}
    for name in names:
        for load in SWEEP:
            turn = turns.take(name, load * setup.nominal_per_s, 2 * setup.seconds)
            if not points:
                served = service(turn.answers, turn.window)
            points.append({"contender": name, "load_of_nominal": load, **turn.measured})
            _say(name, f"{load:g} of nominal", turn.measured)
    return points, served


def _test(turns: Turns, setup: Setup, name: str, load: float, capacity_per_s: float) -> Measured:
    rate_per_s = load * capacity_per_s
    if load == TEST_LOAD:
        light_per_s = LIGHT_LOAD * capacity_per_s
        turn = turns.take(name, rate_per_s, setup.test_seconds, light_per_s)
        recovery = {"recovery_s": recovery_s(turn.answers, turn.window.ends_s, setup.slo_s)}
    else:
        turn = turns.take(name, rate_per_s, setup.seconds)
        recovery = {}
    goodput = turn.measured["goodput_per_s"] / capacity_per_s
    return {"load": load, "goodput_of_capacity": goodput, **turn.measured, **recovery}


def bars(tests: Mapping[str, Measured], slo_s: float) -> list[Measured]:
    """What is wanted of Forebay in the overload test; `tests`: contender -> its turn."""
    measured = tests.get("forebay", {})
    there = "forebay" in tests
    return [
        verdict(
            f"goodput at {TEST_LOAD:g}x, of capacity",
            measured.get("goodput_of_capacity"),
            ">=",
            0.95,
            measured=there,
        ),
        verdict(
            "p99 TTFT of accepted requests there, seconds",
            measured.get("ttft_p99_s"),
            "<=",
            slo_s,
            measured=there,
        ),
        verdict(
            "normal again after the load, seconds",
            measured.get("recovery_s"),
            "<=",
            2.0,
            measured=there,
        ),
    ]


def doubt(turns: Sequence[Measured], slo_s: float, test_answers: float) -> str | None:
    """Why this run is not to be trusted; None where nothing was too slow or too short for that.

    test_answers  how many answers the overload test had room for
    """
    late_s = max(turn["late_p99_s"] for turn in turns)
    busiest: dict[str, float] = {}
    for turn in turns:
        for part, cores in turn["cores_used"].items():
            busiest[part] = max(busiest.get(part, 0.0), cores)
    machine_share = busiest.pop("machine") / (os.cpu_count() or 1)
    reasons: list[str] = []
    if late_s > _MOST_LATE_OF_SLO * slo_s:
        reasons.append(f"1% of a turn's requests were sent {late_s * 1000:.0f} ms late or more")
    reasons += [
        f"{part} used {cores:.0%} of a core"
        for part, cores in busiest.items()
        if cores > _MOST_OF_A_CORE
    ]
    if machine_share > _MOST_OF_THE_MACHINE:
        reasons.append(f"{machine_share:.0%} of all cores were busy in a turn")
    if test_answers < _FEWEST_ANSWERS:
        reasons.append(
            f"the test had room for {test_answers:.0f} answers, and wants {_FEWEST_ANSWERS}"
        )
    if not reasons:
        return None
    return f"Do not trust this run, a repetition may turn it: {'; '.join(reasons)}."


def settings(setup: Setup) -> dict[str, Any]:
    return {
        "slots": setup.slots,
        "decode_ms": None if setup.profile else setup.decode_ms,
        "profile": str(setup.profile) if setup.profile else None,
        "mean_tokens": setup.mean_tokens,
        "nominal_service_s": setup.service_s,
        "nominal_per_s": setup.nominal_per_s,
        "slo_ttft_s": setup.slo_s,
        "warm_up_s": setup.warm_up_s,
        "seconds": setup.seconds,
        "sweep_seconds": 2 * setup.seconds,
        "test_seconds": setup.test_seconds,
        "light_load": LIGHT_LOAD,
        "light_seconds": setup.light_s,
        "seed": setup.seed,
        "clients": "Poisson arrivals, geometric lengths; a connection for each request, no retries",
        "patience_s": PATIENCE_S,
        "most_connections": MOST_OPEN,
        "envoy_concurrency": 1,
        "transitions": "of Forebay's gate, warm-up and light load included; null: it has none, or "
        "does not count them",
    }


def _lasts_s(setup: Setup, swept: int, contenders: int, loads: int) -> float:
    each_s = setup.warm_up_s + _BETWEEN_TURNS_S
    return (
        swept * len(SWEEP) * (each_s + 2 * setup.seconds)
        + contenders * (loads - 1) * (each_s + setup.seconds)
        + contenders * (each_s + setup.test_seconds + setup.light_s + setup.slo_s)
    )


def _say(name: str, load: str, measured: Measured) -> None:
    p99_s = measured["ttft_p99_s"]
    told = "nothing accepted" if p99_s is None else f"p99 TTFT {p99_s:.2f} s"
    refused = measured["shed_share"] or 0.0
    say(f"{name} at {load}: {measured['goodput_per_s']:.2f} good/s, {told}, {refused:.0%} refused")
