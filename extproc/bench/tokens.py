"""`forebay bench tokens`: what a chunk of a streamed answer costs, by process, in one run.

Each contender streams long answers and short ones, as many of each; the difference is what the
further chunks cost, without what a request costs. Chunks arrive apart, which the client proves.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from extproc.bench.bars import Bar, Measures, Side, doubt, judge, medians, turned
from extproc.bench.contenders import KEY, Running, raise_guard, wait_until_ready
from extproc.bench.envoy import STREAMED_ANSWER
from extproc.bench.lab import BenchError, Lab, say
from extproc.bench.load import NUMBER, Job, Outcome, Request
from extproc.bench.processes import cpu_s
from extproc.bench.report import Result, machine

CHUNK_MS = 5.0
"""Between two chunks of a stream; long enough that the slowest contender keeps up."""
SHORT = 10
"""Chunks of a short answer."""
_SETTLE_S = 0.6
_LEAST_READS_PER_CHUNK = 0.8

BARS = (
    Bar(
        "Envoy CPU, counting and hiding usage / plain Envoy",
        Side("hidden", "envoy_cpu_us"),
        Side("envoy", "envoy_cpu_us"),
        "<",
        1.7,
    ),
    Bar(
        "all CPU, guard / echo",
        Side("guard", "all_cpu_us"),
        Side("echo", "all_cpu_us"),
        "<",
        1.25,
    ),
)


def _envoy(lab: Lab, upstream: str) -> Running:
    url, pid = lab.envoy("envoy", upstream)
    return _running(url, {"envoy": pid})


def _echo(lab: Lab, upstream: str) -> Running:
    processor = lab.minimal("echo", "echo")
    url, pid = lab.envoy("echo", upstream, STREAMED_ANSWER)
    return _running(url, {"envoy": pid, "processor": processor})


def _forebay(lab: Lab, upstream: str) -> Running:
    return _stack(lab, upstream, "forebay", raise_guard)


def _guard(lab: Lab, upstream: str) -> Running:
    def edit(document: Any) -> None:
        raise_guard(document)
        for pool in document["node"]["metadata"]["forebay"]["pools"].values():
            pool["partial_by"] = "guard"

    return _stack(lab, upstream, "guard", edit)


def _stack(lab: Lab, upstream: str, name: str, edit: Callable[[Any], None]) -> Running:
    stack = lab.forebay(name, upstream, edit)
    return _running(stack.config.url, {part: stack.pid(part) for part in ("envoy", "processor")})


def _running(url: str, pids: dict[str, int]) -> Running:
    request = _request(SHORT, usage=False)
    return Running(url, pids, request, request)


def _request(chunks: int, *, usage: bool) -> Request:
    """A streamed answer of so many chunks; `usage`: the client asks for the usage chunk."""
    messages = [{"role": "user", "content": f"Question {NUMBER}: is the sky blue?"}]
    body: dict[str, object] = {"model": "auto", "stream": True, "max_tokens": chunks}
    if usage:
        body["stream_options"] = {"include_usage": True}
    return Request(
        json.dumps({**body, "messages": messages}, separators=(",", ":")),
        {"x-api-key": KEY},
        expect=("data: [DONE]", *(('"usage":',) if usage else ())),
        forbid=() if usage else ('"usage":',),
    )


GATEWAYS: dict[str, Callable[[Lab, str], Running]] = {
    "envoy": _envoy,
    "forebay": _forebay,
    "guard": _guard,
    "echo": _echo,
}


@dataclass(frozen=True)
class Contender:
    what: str
    gateway: str
    asks_usage: bool = False


CONTENDERS = {
    "envoy": Contender("plain Envoy", "envoy"),
    "counted": Contender(
        "the reference config counts natively; the client asked for usage",
        "forebay",
        asks_usage=True,
    ),
    "hidden": Contender(
        "the normal stream: counted, and the usage chunk hidden, since the client did not ask",
        "forebay",
    ),
    "guard": Contender("every chunk by way of Forebay's processor", "guard"),
    "echo": Contender("every chunk by way of the least processor", "echo"),
}


def run(lab: Lab, *, chunks: int, streams: int, rounds: int) -> Result:
    """`chunks` of each of `streams` answers at once."""
    upstream = lab.upstream(chunk_ms=CHUNK_MS)
    gateways: dict[str, Running] = {}
    for name, start in GATEWAYS.items():
        say(f"starting {name}")
        gateways[name] = start(lab, upstream)
        wait_until_ready(lab, name, gateways[name])
    running = {name: gateways[contender.gateway] for name, contender in CONTENDERS.items()}
    measured: dict[str, list[Measures]] = {name: [] for name in running}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name in turned(list(running), number):
            measured[name].append(_measure(lab, name, running[name], chunks, streams))
    return {
        "bench": "tokens",
        "machine": machine(),
        "settings": {
            "chunks": chunks,
            "chunks_of_a_short_answer": SHORT,
            "streams": streams,
            "rounds": rounds,
            "chunk_ms": CHUNK_MS,
            "envoy_concurrency": 1,
            "changed_in_the_reference_config": "local_ratelimit raised to 1,000,000 requests/s",
        },
        "contenders": {
            name: {
                "what": CONTENDERS[name].what,
                "chunks": chunks * streams * rounds,
                **medians(each),
            }
            for name, each in measured.items()
        },
        "ratios": [judge(bar, measured) for bar in BARS],
        "doubt": doubt(rounds=rounds, count=(chunks - SHORT) * streams, of="chunks"),
    }


def _measure(lab: Lab, name: str, running: Running, chunks: int, streams: int) -> Measures:
    usage = CONTENDERS[name].asks_usage
    used: list[dict[str, float]] = []
    reads = 0.0
    for length in (SHORT, chunks):
        before = {part: cpu_s(pid) for part, pid in running.pids.items()}
        outcome = lab.load(
            Job(running.url, _request(length, usage=usage), streams, connections=streams)
        )
        _check(name, outcome, length, streams, usage)
        time.sleep(_SETTLE_S)
        used.append({part: cpu_s(pid) - before[part] for part, pid in running.pids.items()})
        reads = outcome.reads / (length * streams)
    if reads < _LEAST_READS_PER_CHUNK:
        raise BenchError(
            f"{name}: only {reads:.2f} reads for a chunk: the machine is too busy to keep them "
            "apart"
        )
    short, long = used
    further = (chunks - SHORT) * streams
    measures = {f"{part}_cpu_us": (long[part] - short[part]) / further * 1e6 for part in long}
    return measures | {"all_cpu_us": sum(measures.values()), "reads_per_chunk": reads}


def _check(name: str, outcome: Outcome, chunks: int, streams: int, usage: bool) -> None:
    """Every event of every stream has arrived, and no other."""
    events = streams * (chunks + (3 if usage else 2))  # the last choice, the usage, [DONE]
    if outcome.wrong or outcome.answered != streams or outcome.events != events:
        raise BenchError(
            f"{name}: {outcome.answered} of {streams} answers, {outcome.events} of {events} "
            f"events; wrong: {outcome.wrong[:1]}"
        )
