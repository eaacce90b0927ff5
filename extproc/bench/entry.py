"""A contender of `forebay bench overhead` while it is measured, round by round.

Never keeps a number of a job that had a wrong answer.
"""

import time
from typing import Any

from extproc.bench.bars import Measures, percentile
from extproc.bench.contenders import Running
from extproc.bench.lab import BenchError, Lab
from extproc.bench.load import Job, Outcome, Request
from extproc.bench.processes import cpu_s, resident_mib

RATES = (50, 200)
"""Requests a second of the open loops; far below what any gateway with Envoy can do."""
CONNECTIONS = 16
_RATE_S = 2.0
_SATURATION_S = 5.0
# Envoy's access log reaches the processor at most this long after an exchange.
_SETTLE_S = 0.6


class Entry:
    """A contender while it runs: its numbers so far."""

    def __init__(self, lab: Lab, name: str, running: Running) -> None:
        self._lab = lab
        self.name = name
        self.running = running
        self.rounds: list[Measures] = []
        self.answers = 0
        self.started_mib = self.memory_mib()

    def load(self, requests: int, request: Request | None = None, **how: Any) -> Outcome:
        """Run a job; BenchError at any answer that is not as expected."""
        what = request or self.running.request
        first = self.answers + 1
        outcome = self._lab.load(Job(self.running.url, what, requests, first_number=first, **how))
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
            f"{entry.name}: {answers} answers, but {counted:g} went the way that is measured"
        )
