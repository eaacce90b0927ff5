"""`forebay bench overhead`: what the gateway costs per request, beside others, in one run.

The contenders take turns, several rounds, so that the noise of the machine hits all alike. Every
answer is checked; a wrong one ends the benchmark. No bar is ever adjusted to what is measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from extproc.bench import processor
from extproc.bench.bars import Bar, Side, doubt, judge, medians, turned
from extproc.bench.contenders import CONTENDERS, wait_until_ready
from extproc.bench.entry import CONNECTIONS, RATES, Entry
from extproc.bench.foreign import Skipped
from extproc.bench.lab import BenchError, Lab, say
from extproc.bench.report import Result, machine

_WARM_UP = 200

BARS = (
    Bar(
        "processor CPU, forebay / minimal",
        Side("forebay", "processor_cpu_us"),
        Side("minimal", "processor_cpu_us"),
        "<",
        1.4,
    ),
    Bar(
        "processor CPU, forebay-fill / minimal",
        Side("forebay-fill", "processor_cpu_us"),
        Side("minimal", "processor_cpu_us"),
        "<",
        2.0,
    ),
    Bar(
        "p50 at 200/s, forebay-hit / immediate",
        Side("forebay-hit", "p50_ms_at_200"),
        Side("immediate", "p50_ms_at_200"),
        "<",
        1.4,
    ),
    Bar(
        "processor CPU, forebay-shed / minimal",
        Side("forebay-shed", "processor_cpu_us"),
        Side("minimal", "processor_cpu_us"),
        "<",
        0.8,
    ),
    Bar(
        "all CPU, litellm / forebay",
        Side("litellm", "all_cpu_us"),
        Side("forebay", "all_cpu_us"),
        ">=",
        12.0,
    ),
)


def run(lab: Lab, *, names: Sequence[str], requests: int, rounds: int, soak: int = 0) -> Result:
    """`requests`: at saturation, for each contender and round. `soak`: further exchanges for the
    memory in the long run."""
    upstream = lab.upstream()
    skipped: dict[str, str] = {}
    entries = _start(lab, upstream, names, requests, skipped)
    if not entries:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise BenchError(f"nothing is left to measure: {reasons}")
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: {', '.join(entries)}")
        for entry in turned(list(entries.values()), number):
            entry.measure(requests)
    told = summary(entries)
    large = {
        name: processor.large_prompt_ms(entries[name], requests)
        for name in ("minimal", "forebay")
        if name in entries
    }
    result: Result = {
        "bench": "overhead",
        "machine": machine(),
        "settings": {
            "requests": requests,
            "rounds": rounds,
            "rates_per_s": RATES,
            "connections": CONNECTIONS,
            "envoy_concurrency": 1,
            "changed_in_the_reference_config": "local_ratelimit raised to 1,000,000 requests/s",
        },
        "contenders": told,
        "skipped": skipped,
        "ratios": [judge(bar, {n: e.rounds for n, e in entries.items()}) for bar in BARS],
        "doubt": doubt(rounds=rounds, count=requests, of="requests"),
        "large_prompt_cpu_ms": large,
    }
    forebay = entries.get("forebay")
    if forebay and forebay.running.stack:
        result["processor_start_ms"] = processor.start_ms(lab, forebay.running.stack)
        if soak:
            result["soak"] = processor.soak(forebay, soak)
    return result


def _start(
    lab: Lab, upstream: str, names: Sequence[str], requests: int, skipped: dict[str, str]
) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for name in names:
        say(f"starting {name}")
        try:
            running = CONTENDERS[name].start(lab, upstream)
            wait_until_ready(lab, name, running)
        except Skipped as why:
            skipped[name] = str(why)
            say(f"{name} is skipped: {why}")
            continue
        entries[name] = entry = Entry(lab, name, running)
        with running.during():
            entry.load(min(_WARM_UP, requests), connections=CONNECTIONS)
        entry.started_mib = entry.memory_mib()
    return entries


def summary(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """Medians over the rounds, and what the latencies have more than plain Envoy's."""
    plain = entries.get("envoy")
    told: dict[str, Any] = {}
    for name, entry in entries.items():
        rounds = [dict(each) for each in entry.rounds]
        for mine, its in zip(rounds, plain.rounds if plain else (), strict=bool(plain)):
            for rate in RATES:
                for p in (50, 99):
                    key = f"p{p}_ms_at_{rate}"
                    mine[f"added_{key}"] = mine[key] - its[key]
        told[name] = {
            "what": CONTENDERS[name].what,
            "answers": entry.answers,
            **medians(rounds),
            "memory_mib_at_start": entry.started_mib,
            "memory_mib_at_end": entry.memory_mib(),
        }
    return told
