"""`forebay bench overhead`: what the gateway costs per request, beside others, in one run.

The contenders take turns, several rounds, so that the noise of the machine hits all alike. Every
answer is checked; a wrong one ends the benchmark. No bar is ever adjusted to what is measured.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from extproc.bench.bars import Bar, Measures, Side, judge, medians, percentile
from extproc.bench.contenders import CONTENDERS, Running, Skipped, wait_until_ready
from extproc.bench.lab import BenchError, Lab, say
from extproc.bench.load import Job, Outcome
from extproc.bench.processes import cpu_s, resident_mib
from extproc.bench.report import Result, machine

RATES = (50, 200)
"""Requests a second of the open loops; far below what any contender can do."""
CONNECTIONS = 16
_WARM_UP = 200
_RATE_S = 2.0
_SATURATION_S = 5.0
# Envoy's access log reaches the processor at most this long after an exchange.
_SETTLE_S = 0.6

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


class Entry:
    """A contender while it runs: its numbers so far."""

    def __init__(self, lab: Lab, name: str, running: Running) -> None:
        self._lab = lab
        self.name = name
        self.running = running
        self.rounds: list[Measures] = []
        self.answers = 0
        self.started_mib = self.memory_mib()

    def load(self, requests: int, **how: Any) -> Outcome:
        """Run a job; BenchError at any answer that is not as expected."""
        running = self.running
        outcome = self._lab.load(
            Job(running.url, running.request, requests, first_number=self.answers + 1, **how)
        )
        if outcome.wrong or outcome.answered != outcome.sent:
            raise BenchError(
                f"{self.name}: {outcome.answered} answers to {outcome.sent} requests; wrong: "
                f"{outcome.wrong[:1]}"
            )
        self.answers += outcome.answered
        return outcome

    def cpu_us(self, requests: int, **how: Any) -> tuple[Measures, Outcome]:
        """A job, and what each process used for it, per request."""
        before = {name: cpu_s(pid) for name, pid in self.running.pids.items()}
        outcome = self.load(requests, **how)
        time.sleep(_SETTLE_S)
        return {
            f"{name}_cpu_us": (cpu_s(pid) - before[name]) / outcome.answered * 1e6
            for name, pid in self.running.pids.items()
        }, outcome

    def measure(self, requests: int) -> None:
        """One round."""
        measures: Measures = {}
        with self.running.during():
            counted, answers = self.running.counter and self.running.counter(), self.answers
            for rate in RATES:
                most = min(requests, int(rate * _RATE_S))
                outcome = self.load(most, mode="open", rate=float(rate), limit_s=_RATE_S * 2)
                measures |= _latencies(outcome, f"at_{rate}")
            used, outcome = self.cpu_us(requests, connections=CONNECTIONS, limit_s=_SATURATION_S)
            if self.running.counter and counted is not None:
                _prove(self, self.running.counter() - counted, self.answers - answers)
        measures |= used | {"all_cpu_us": sum(used.values())}
        measures["requests_per_s"] = outcome.answered / outcome.wall_s
        measures |= _latencies(outcome, "at_saturation")
        self.rounds.append(measures)

    def memory_mib(self) -> float | None:
        pid = self.running.pids.get("processor") or self.running.pids.get("proxy")
        return resident_mib(pid) if pid else None


def _latencies(outcome: Outcome, when: str) -> Measures:
    latencies = outcome.latencies_us
    return {f"p{p}_ms_{when}": percentile(latencies, p) / 1000 for p in (50, 99)}


def _prove(entry: Entry, counted: float, answers: int) -> None:
    if counted != answers:
        raise BenchError(
            f"{entry.name}: {answers} answers, but only {counted:g} went the way that is measured"
        )


def run(lab: Lab, *, names: Sequence[str], requests: int, rounds: int) -> Result:
    """`requests`: at saturation, for each contender and round."""
    upstream = lab.upstream()
    skipped: dict[str, str] = {}
    entries = _start(lab, upstream, names, skipped)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: {', '.join(entries)}")
        for entry in _turned(list(entries.values()), number):
            entry.measure(requests)
    return {
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
        "contenders": summary(entries),
        "skipped": skipped,
        "ratios": [judge(bar, {n: e.rounds for n, e in entries.items()}) for bar in BARS],
    }


def _start(
    lab: Lab, upstream: str, names: Sequence[str], skipped: dict[str, str]
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
            entry.load(_WARM_UP, connections=CONNECTIONS)
        entry.started_mib = entry.memory_mib()
    return entries


def _turned(entries: list[Entry], by: int) -> list[Entry]:
    """In rotation: each comes once first, once second, ..."""
    by %= len(entries)
    return entries[by:] + entries[:by]


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
