"""The clients of `forebay bench overload`: an open loop, which sends whether or not it is answered.

A process of its own, as `extproc.bench.load` is: a Job as a line of JSON in, an Outcome out. Each
request has a connection of its own, is never tried again, and waits `patience_s` at most.
"""

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Literal, cast
from urllib.parse import urlsplit

import orjson
import uvloop

from extproc.bench.load import is_whole
from extproc.bench.overload.arrivals import Arrival, Phase, arrivals

MOST_OPEN = 6000
"""Connections at once. A request above that is not sent, and has failed."""
_REFUSALS = (429, 503)
_MOST_KEPT_OF_A_FAILURE = 300


@dataclass(frozen=True)
class Job:
    url: str
    model: str
    phases: tuple[Phase, ...]
    mean_tokens: float
    seed: int
    headers: dict[str, str] = field(default_factory=dict)
    watch_s: float = 0.0
    """After the last phase: how long answers are still waited for. Then all are cut."""
    patience_s: float = 30.0


@dataclass
class Answer:
    """What became of a request. Times are seconds since the job began, or since it was due."""

    due_s: float
    tokens: int
    late_s: float = 0.0
    """How much after it was due it was sent; counts in `ttft_s`."""
    ttft_s: float | None = None
    """From when it was due to the first event of its answer."""
    ended_s: float | None = None
    status: int | None = None
    outcome: Literal["open", "whole", "refused", "failed"] = "open"
    """open: not ended when the job was; failed: cut, not whole, or out of patience."""
    why: str = ""


@dataclass(frozen=True)
class Outcome:
    answers: list[Answer]
    lasted_s: float
    most_open: int


class _Run:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._loop = asyncio.get_running_loop()
        self._host, _, port = urlsplit(job.url).netloc.rpartition(":")
        self._port = int(port)
        self._open: set[_Exchange] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: list[Answer] = []
        self.most_open = 0
        self.began = 0.0
        self.patience_s = job.patience_s

    async def run(self) -> Outcome:
        due = arrivals(self._job.phases, self._job.mean_tokens, self._job.seed)
        self.began = self._loop.time()
        for arrival in due:
            if (wait_s := self.began + arrival.due_s - self._loop.time()) > 0:
                await asyncio.sleep(wait_s)
            self._send(arrival)
        ends_s = sum(phase.seconds for phase in self._job.phases) + self._job.watch_s
        await asyncio.sleep(max(0.0, self.began + ends_s - self._loop.time()))
        lasted_s = self._loop.time() - self.began
        for task in self._tasks:
            task.cancel()
        for exchange in list(self._open):
            exchange.drop()
        return Outcome(self._answers, lasted_s, self.most_open)

    def _send(self, arrival: Arrival) -> None:
        now_s = self._loop.time() - self.began
        answer = Answer(arrival.due_s, arrival.tokens, now_s - arrival.due_s)
        self._answers.append(answer)
        if len(self._open) >= MOST_OPEN:
            answer.outcome, answer.why = "failed", f"not sent: {MOST_OPEN} connections were open"
            return
        exchange = _Exchange(self, answer, self._request(len(self._answers), arrival.tokens))
        self._open.add(exchange)
        self.most_open = max(self.most_open, len(self._open))
        task = self._loop.create_task(self._connect(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, exchange: "_Exchange") -> None:
        try:
            await self._loop.create_connection(lambda: exchange, self._host, self._port)
        except OSError as error:
            exchange.end("failed", f"no connection: {error.strerror}")

    def _request(self, number: int, tokens: int) -> bytes:
        body = json.dumps(
            {
                "model": self._job.model,
                "stream": True,
                "max_tokens": tokens,
                "messages": [{"role": "user", "content": f"Question {number}"}],
            }
        )
        headers = {"host": f"{self._host}:{self._port}", "content-type": "application/json"}
        headers |= self._job.headers | {"content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n{body}".encode()

    def ended(self, exchange: "_Exchange") -> None:
        self._open.discard(exchange)


class _Exchange(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, run: _Run, answer: Answer, request: bytes) -> None:
        self._run = run
        self._answer = answer
        self._request = request
        self._read = bytearray()
        self._transport: asyncio.Transport | None = None
        self._dropped = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(
            run.patience_s - answer.late_s, self.end, "failed", "out of patience"
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if self._dropped:
            self._transport.abort()
        else:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._dropped:
            return
        answer = self._answer
        self._read += data
        if answer.status is None and len(self._read) >= 12:
            answer.status = int(self._read[9:12])
        if answer.ttft_s is None and answer.status == 200 and b"data: " in self._read:
            answer.ttft_s = self._now_s() - answer.due_s
        if is_whole(self._read):
            self.end(*judged(answer.status, bytes(self._read)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("failed", "the connection was closed before the answer's end")

    def end(self, outcome: Literal["whole", "refused", "failed"], why: str) -> None:
        if self._dropped:
            return
        self._answer.outcome, self._answer.why = outcome, why
        self._answer.ended_s = self._now_s()
        self.drop()

    def drop(self) -> None:
        """Nothing that comes after this counts."""
        self._dropped = True
        self._timer.cancel()
        self._run.ended(self)
        if self._transport is not None:
            self._transport.abort()

    def _now_s(self) -> float:
        return self._loop.time() - self._run.began


def judged(status: int | None, answer: bytes) -> tuple[Literal["whole", "refused", "failed"], str]:
    """Of an answer that has come to its end: what it is, and why if it failed."""
    if status in _REFUSALS:
        return "refused", ""
    if status == 200 and b"data: [DONE]" in answer and b'"finish_reason":"length"' in answer:
        return "whole", ""
    return "failed", answer[-_MOST_KEPT_OF_A_FAILURE:].decode(errors="replace")


async def run_job(job: Job) -> Outcome:
    return await _Run(job).run()


async def _work() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        given = orjson.loads(line)
        phases = tuple(Phase(**phase) for phase in given["phases"])
        outcome = await run_job(Job(**{**given, "phases": phases}))
        sys.stdout.buffer.write(orjson.dumps(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(_work())
