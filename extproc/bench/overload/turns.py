"""A turn of `forebay bench overload`: one contender at one load, while the others stand still.

Never leaves anything in the server for the next turn. What a contender has learned in one (as the
latency that Envoy's filter measured) it keeps, as in production.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.bench.bars import percentile
from extproc.bench.lab import BenchError, Lab, say
from extproc.bench.overload.arrivals import Phase
from extproc.bench.overload.contenders import CONTENDERS, Running, metrics
from extproc.bench.overload.load import Answer, Job
from extproc.bench.overload.measures import Measured, Window, measure
from extproc.bench.overload.setup import MODEL, Setup
from extproc.bench.processes import cpu_s, machine_cpu_s
from extproc.up import free_port

PATIENCE_S = 30.0
"""A client waits so long for the end of its answer."""
_LOADER = "extproc.bench.overload.load"
_IDLE_WITHIN_S = 15.0
_READY_WITHIN_S = 15.0
_MOST_EXAMPLES = 3


@dataclass(frozen=True)
class Turn:
    """What was measured, and the answers it was measured from."""

    measured: Measured
    answers: list[Answer]
    window: Window


class Turns:
    """The server and the contenders before it."""

    def __init__(self, lab: Lab, setup: Setup, names: Sequence[str]) -> None:
        self._lab = lab
        self._setup = setup
        _allow_open_files()
        port = free_port()
        self._server = f"http://127.0.0.1:{port}"
        say("starting the simulated server")
        health_url = f"{self._server}/health"
        self._server_pid = lab.start("simulator", setup.simulator(port), health_url)
        self._running: dict[str, Running] = {}
        for name in names:
            say(f"starting {name}")
            contender = CONTENDERS[name]
            settings = contender.settings(setup.slots, setup.slo_s)
            self._running[name] = contender.start(lab, name, self._server, setup.slots, settings)
            self._wait_until_ready(name)

    def take(
        self, name: str, rate_per_s: float, seconds: float, light_per_s: float | None = None
    ) -> Turn:
        """A warm-up, then `seconds` that are measured, then a light load if there is to be one."""
        setup, running = self._setup, self._running[name]
        ends_s = setup.warm_up_s + seconds
        phases = [Phase(rate_per_s, ends_s)]
        if light_per_s is not None:
            phases.append(Phase(light_per_s, setup.light_s))
        transitions = running.transitions()
        before, began = self._cpu_s(running), time.monotonic()
        # The last of the light load get the time that they may take.
        answers, lasted_s, most_open = self._load(
            running, phases, watch_s=0.0 if light_per_s is None else setup.slo_s
        )
        took_s = time.monotonic() - began
        used_s = {part: spent - before[part] for part, spent in self._cpu_s(running).items()}
        after = running.transitions()
        self._wait_until_idle(name)
        window = Window(setup.warm_up_s, ends_s, lasted_s)
        measured = measure(answers, window, setup.slo_s) | {
            "transitions": None if transitions is None or after is None else after - transitions,
            "failures": sorted({a.why for a in answers if a.outcome == "failed"})[:_MOST_EXAMPLES],
            "most_open": most_open,
            "late_p99_s": percentile([answer.late_s for answer in answers], 99),
            "cores_used": {part: spent_s / took_s for part, spent_s in used_s.items()},
        }
        return Turn(measured, answers, window)

    def _load(
        self, running: Running, phases: Sequence[Phase], watch_s: float
    ) -> tuple[list[Answer], float, int]:
        """The answers, how long it lasted in seconds, and the most connections at once."""
        setup = self._setup
        job = Job(
            url=running.url,
            model=MODEL,
            phases=tuple(phases),
            mean_tokens=setup.mean_tokens,
            seed=setup.seed,
            headers=running.headers,
            watch_s=watch_s,
            patience_s=PATIENCE_S,
        )
        told = self._lab.ask(_LOADER, job)
        answers = [Answer(**answer) for answer in told["answers"]]
        if not answers:
            raise BenchError("not one request came in a turn; measure for longer")
        return answers, told["lasted_s"], told["most_open"]

    def _cpu_s(self, running: Running) -> dict[str, float]:
        pids = running.pids | {
            "simulator": self._server_pid,
            "load_generator": self._lab.loader(_LOADER).pid,
        }
        return {part: cpu_s(pid) for part, pid in pids.items()} | {"machine": machine_cpu_s()}

    def _wait_until_ready(self, name: str) -> None:
        """Until a first token comes back."""
        until = time.monotonic() + _READY_WITHIN_S
        while True:
            answers, *_ = self._load(self._running[name], [Phase(50.0, 0.2)], watch_s=0.5)
            if any(answer.ttft_s is not None for answer in answers):
                self._wait_until_idle(name)
                return
            if time.monotonic() > until:
                raise BenchError(f"{name} does not answer as it should: {answers[0]}")

    def _wait_until_idle(self, name: str) -> None:
        """The clients are gone; until the server has seen that."""
        until = time.monotonic() + _IDLE_WITHIN_S
        while True:
            self._lab.check()
            shown = metrics(self._server)
            left = shown["vllm:num_requests_running"] + shown["vllm:num_requests_waiting"]
            if not left:
                return
            if time.monotonic() > until:
                raise BenchError(
                    f"{name}: {left:g} requests are in the server {_IDLE_WITHIN_S:g} s after their "
                    "clients left"
                )
            time.sleep(0.05)


def _allow_open_files() -> None:
    """As many as the system lets us: a plain Envoy under overload has thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
