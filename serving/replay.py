"""A trace of requests through the engine in virtual time: what batching does, in seconds of CPU.

No server and no waiting: the engine's clock jumps from step to step. Must never depend on the
machine or the moment: the same arguments give the same numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from serving import engine
from serving.engine import Engine, StepTime

_KINDS = ("continuous", "static")


@dataclass(frozen=True)
class Request:
    """Arrives `at_s` after the beginning."""

    at_s: float
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests of a chat: lengths are log-normal around these medians (a few are many times as
    long), arrivals are Poisson. The same seed gives the same requests at any rate."""

    requests: int = 600
    prompt_median: int = 200
    prompt_sigma: float = 1.0
    prompt_most: int = 4096
    tokens_median: int = 130
    tokens_sigma: float = 0.8
    tokens_most: int = 1024
    seed: int = 0

    def at_rate(self, requests_per_s: float) -> list[Request]:
        """The trace at that load; infinite: all at once."""
        random = np.random.default_rng(self.seed)
        arrivals = np.cumsum(random.exponential(1.0, self.requests)) / requests_per_s
        prompts = random.lognormal(np.log(self.prompt_median), self.prompt_sigma, self.requests)
        tokens = random.lognormal(np.log(self.tokens_median), self.tokens_sigma, self.requests)
        return [
            Request(float(at), int(prompt), int(length))
            for at, prompt, length in zip(
                arrivals,
                np.clip(np.rint(prompts), 1, self.prompt_most),
                np.clip(np.rint(tokens), 1, self.tokens_most),
                strict=True,
            )
        ]


@dataclass(frozen=True)
class Outcome:
    """What one trace did to one engine.

    tokens_per_s  generated tokens over the time from the first arrival to the last end
    mean_batch    sequences in a step that still want tokens, mean over busy time
    others        milliseconds, as {"p50": ..., "p99": ...}; time per output token is from the first
                  token to the last, so in a static batch it has the wait for the batch's end in it
    """

    tokens_per_s: float
    mean_batch: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    e2e_ms: dict[str, float]
    preemptions: int


def replay(trace: Sequence[Request], target: Engine) -> Outcome:
    """Run the trace to its end."""
    sequences = [_sequence(one) for one in trace]
    arriving = 0
    busy_s = wanting_s = 0.0
    while True:
        due = target.next_step_at()
        if arriving < len(trace) and (due is None or trace[arriving].at_s <= due):
            target.add([sequences[arriving]], trace[arriving].at_s)
            arriving += 1
        elif due is None:
            break
        else:
            busy_s += target.step_s
            wanting_s += target.step_s * sum(not one.parked for one in target.batch)
            target.step(due)
    return _outcome(sequences, wanting_s / busy_s, target.preemptions)


def saturation_requests_per_s(setup: "Setup", workload: Workload) -> float:
    """What the continuous engine serves as long as somebody waits: all come at once, and the count
    ends when the last one is let in."""
    trace = workload.at_rate(float("inf"))
    target = setup.engine(static=False)
    sequences = [_sequence(one) for one in trace]
    target.add(sequences, 0.0)
    now = 0.0
    while target.waiting and (due := target.next_step_at()) is not None:
        target.step(due)
        now = due
    tokens_per_s = sum(one.tokens for one in sequences) / now
    return tokens_per_s * len(trace) / sum(one.tokens for one in trace)


def _sequence(request: Request) -> engine.Sequence:
    rest = ("length", None, lambda event: None)
    return engine.Sequence("", 0, request.prompt_tokens, request.tokens, *rest)


def _outcome(sequences: Sequence[engine.Sequence], mean_batch: float, preemptions: int) -> Outcome:
    arrived = np.array([one.arrived_at for one in sequences])
    first = np.array([one.first_token_at for one in sequences], dtype=float)
    ended = np.array([one.ended_at for one in sequences], dtype=float)
    tokens = np.array([one.tokens for one in sequences])
    several = tokens > 1
    return Outcome(
        tokens_per_s=float(tokens.sum() / (ended.max() - arrived.min())),
        mean_batch=mean_batch,
        ttft_ms=_percentiles(first - arrived),
        tpot_ms=_percentiles((ended - first)[several] / (tokens - 1)[several]),
        e2e_ms=_percentiles(ended - arrived),
        preemptions=preemptions,
    )


def _percentiles(seconds: np.ndarray) -> dict[str, float]:
    return {f"p{share}": float(np.percentile(seconds, share) * 1e3) for share in (50, 99)}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The engine that both kinds of batching are tried on."""

    step_time: StepTime
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_kv_blocks: int = 8192

    def engine(self, *, static: bool) -> Engine:
        return Engine(
            step_time=self.step_time,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            num_kv_blocks=self.num_kv_blocks,
            static_batching=static,
        )


def compare(
    setup: Setup,
    workload: Workload,
    loads: Sequence[float],
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The same trace at several loads through both kinds of batching.

    loads  shares of the saturation rate

    Gives {"setup", "workload", "saturation_requests_per_s", "runs": [{"batching", "load",
    "requests_per_s", ...Outcome}]}.
    """
    say("how much it can serve at most")
    saturation = saturation_requests_per_s(setup, workload)

    def runs() -> Iterator[dict[str, Any]]:
        for load in loads:
            say(f"load {load:.0%} of {saturation:.2f} requests/s")
            trace = workload.at_rate(load * saturation)
            for kind in _KINDS:
                outcome = replay(trace, setup.engine(static=kind == "static"))
                rate = {"load": load, "requests_per_s": load * saturation}
                yield {"batching": kind, **rate, **asdict(outcome)}

    return {
        "setup": asdict(setup),
        "workload": asdict(workload),
        "saturation_requests_per_s": saturation,
        "runs": list(runs()),
    }
