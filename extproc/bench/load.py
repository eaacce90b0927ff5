"""The load generator: raw HTTP/1.1 over kept connections, every answer checked.

A process of its own, which does one job after the other: a Job as a line of JSON on standard input,
its Outcome as a line on standard output. Loads only the address that it is told, never another.
"""

import asyncio
import sys
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Literal, cast
from urllib.parse import urlsplit

import orjson
import uvloop

NUMBER = "############"
"""Stands in a body where each request gets a number of its own."""

_MOST_OPEN = 64
_WITHIN_S = 60.0
_MOST_EXAMPLES = 3


@dataclass(frozen=True)
class Request:
    """What is sent, and what every answer to it must be."""

    body: str
    headers: dict[str, str] = field(default_factory=dict)
    path: str = "/v1/chat/completions"
    status: int = 200
    expect: tuple[str, ...] = ()
    """What the bytes of an answer contain, head or body."""
    forbid: tuple[str, ...] = ()
    """What they do not."""


@dataclass(frozen=True)
class Job:
    url: str
    request: Request
    requests: int
    first_number: int = 0
    mode: Literal["closed", "open"] = "closed"
    """closed: `connections` of them, each with one request at a time; open: `rate` a second,
    whether or not the earlier ones are answered."""
    connections: int = 16
    rate: float = 0.0
    limit_s: float = 60.0
    """After so long no further request is sent."""


@dataclass(frozen=True)
class Outcome:
    sent: int
    answered: int
    wall_s: float
    latencies_us: list[int]
    reads: int
    """Times that the kernel had something for us: of a stream, the pieces that came apart."""
    events: int
    """`data:` lines in all answers."""
    wrong: list[str]
    """What was not as expected; a few examples."""


class _Run:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._loop = asyncio.get_running_loop()
        self._free: list[_Connection] = []
        self._waiting: list[int] = []  # open loop: when they were due
        self._done = self._loop.create_future()
        self._ends_at = self._loop.time() + job.limit_s
        self._closed_to_new = False
        self._expect = tuple(text.encode() for text in job.request.expect)
        self._forbid = tuple(text.encode() for text in job.request.forbid)
        self._status = b"HTTP/1.1 %d " % job.request.status
        self.sent = self.answered = self.reads = self.events = 0
        self.latencies_us: list[int] = []
        self.wrong: list[str] = []
        self._before, self._number, self._after = prepared(job)

    async def run(self) -> Outcome:
        job = self._job
        host, _, port = urlsplit(job.url).netloc.rpartition(":")
        count = job.connections if job.mode == "closed" else _MOST_OPEN
        made: list[_Connection] = []
        for _ in range(count):
            _, connection = await self._loop.create_connection(
                lambda: _Connection(self), host, int(port)
            )
            made.append(connection)
        began = perf_counter_ns()
        try:
            if job.mode == "closed":
                for connection in made[: job.requests]:
                    self._send(connection, perf_counter_ns())
            else:
                self._free = made
                self._tick(self._loop.time(), 0)
            async with asyncio.timeout(job.limit_s + _WITHIN_S):
                await self._done
        except TimeoutError:
            self.fail(f"only {self.answered} of {self.sent} were answered in time")
        wall_s = (perf_counter_ns() - began) / 1e9
        for connection in made:
            connection.close()
        return Outcome(
            self.sent,
            self.answered,
            wall_s,
            self.latencies_us,
            self.reads,
            self.events,
            self.wrong,
        )

    def _tick(self, began: float, sent: int) -> None:
        """Send what is due, and come again when the next is."""
        now = self._loop.time()
        due = min(int((now - began) * self._job.rate) + 1, self._job.requests)
        for _ in range(sent, due):
            if self._free:
                self._send(self._free.pop(), perf_counter_ns())
            else:
                self._waiting.append(perf_counter_ns())
        if due < self._job.requests and now < self._ends_at:
            self._loop.call_at(began + due / self._job.rate, self._tick, began, due)
        else:
            self._closed_to_new = True
            if not self._waiting and self.answered == self.sent:
                self._end()

    def _send(self, connection: "_Connection", due_ns: int) -> None:
        connection.due_ns = due_ns
        number = self._job.first_number + self.sent
        self.sent += 1
        if self._number:
            connection.write(b"%s%012d%s" % (self._before, number, self._after))
        else:
            connection.write(self._before)

    def got(self, connection: "_Connection", answer: bytes) -> None:
        self.latencies_us.append((perf_counter_ns() - connection.due_ns) // 1000)
        self.answered += 1
        self.events += answer.count(b"data: ")
        if not self._is_right(answer):
            self.fail(answer[:600].decode(errors="replace"))
            return
        if self._job.mode == "open":
            if self._waiting:
                self._send(connection, self._waiting.pop(0))
            else:
                self._free.append(connection)
                if self._closed_to_new and self.answered == self.sent:
                    self._end()
        elif self.sent < self._job.requests and self._loop.time() < self._ends_at:
            self._send(connection, perf_counter_ns())
        elif self.answered == self.sent:
            self._end()

    def _is_right(self, answer: bytes) -> bool:
        return (
            answer.startswith(self._status)
            and all(text in answer for text in self._expect)
            and not any(text in answer for text in self._forbid)
        )

    def fail(self, what: str) -> None:
        """One wrong answer fails the job: what follows it would not be worth measuring."""
        if len(self.wrong) < _MOST_EXAMPLES:
            self.wrong.append(what)
        self._end()

    def _end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


def prepared(job: Job) -> tuple[bytes, bool, bytes]:
    """The whole request as bytes: what stands before a number, whether there is one, the rest."""
    body = job.request.body.encode()
    parts = urlsplit(job.url)
    head = f"POST {job.request.path} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
    headers = {"content-type": "application/json", **job.request.headers}
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    whole = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    before, number, after = whole.partition(NUMBER.encode())
    return before, bool(number), after


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._answer = bytearray()
        self._closing = False
        self.due_ns = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self._run.fail("a connection was closed by the other side")

    def write(self, request: bytes) -> None:
        if not self._transport.is_closing():  # else `connection_lost` tells of it
            self._transport.write(request)

    def close(self) -> None:
        self._closing = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._run.reads += 1
        self._answer += data
        if is_whole(self._answer):
            answer = bytes(self._answer)
            self._answer.clear()
            self._run.got(self, answer)


def is_whole(answer: bytearray) -> bool:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = answer.find(b"content-length: ", 0, end)
    if at >= 0:
        stop = answer.find(b"\r\n", at)
        return len(answer) >= end + 4 + int(answer[at + 16 : stop])
    return answer.endswith(b"\r\n0\r\n\r\n")  # chunked


async def run_job(job: Job) -> Outcome:
    return await _Run(job).run()


async def _work() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        given = orjson.loads(line)
        outcome = await run_job(Job(**{**given, "request": Request(**given["request"])}))
        sys.stdout.buffer.write(orjson.dumps(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(_work())
