"""One JSON object per line on standard error, written by a thread of its own.

The thread wakes ten times a second and writes what has gathered: a line costs the event loop one
append. A reader that stalls must not stall the event loop: above a bound lines are dropped and
counted. No line holds a prompt, an answer or a credential; who logs says only names, numbers and
reasons.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from functools import lru_cache
from typing import Any

import orjson

_MOST_WAITING_LINES = 10_000
_WRITTEN_TOGETHER = 1_000
_WRITE_EVERY_S = 0.1
_LAST_LINES_S = 1.0


class Writer(logging.Handler):
    """Writes to a file descriptor. State: the lines that wait, the bytes being written, and how
    many lines were dropped since the start.

    Never through `sys.stderr`: a thread that is stuck there holds a lock that the interpreter wants
    when it ends.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._waiting: deque[dict[str, Any]] = deque()
        self._unwritten = b""
        self.dropped = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, but wait for no reader that has stalled: the thread is a daemon."""
        self._stop.set()
        self._thread.join(_LAST_LINES_S)

    def emit(self, record: logging.LogRecord) -> None:
        line: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__  # its text might quote a prompt
        self.append(line)

    def append(self, line: dict[str, Any]) -> None:
        """`line["time"]`: seconds since the epoch. Never waits."""
        if len(self._waiting) < _MOST_WAITING_LINES:
            self._waiting.append(line)
        else:
            self.dropped += 1

    def createLock(self) -> None:  # logging's name for it
        """None: an append to a deque is atomic."""
        self.lock = None

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(_WRITE_EVERY_S)
            while self._unwritten or self._waiting:
                if not self._unwritten:
                    most = min(len(self._waiting), _WRITTEN_TOGETHER)
                    lines = [self._waiting.popleft() for _ in range(most)]
                    self._unwritten = b"".join(map(_as_json, lines))
                try:
                    written = os.write(self._fd, self._unwritten)
                except OSError:  # no reader, no room: perhaps next time
                    break
                self._unwritten = self._unwritten[written:]


def _as_json(line: dict[str, Any]) -> bytes:
    at: float = line["time"]
    line["time"] = f"{_second(int(at))}.{int(at % 1 * 1000):03d}Z"
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # text that is no Unicode
        return json.dumps(line, default=str).encode() + b"\n"


@lru_cache(maxsize=2)
def _second(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


_STDERR = 2
_writer = Writer(_STDERR)


def start(fd: int = _STDERR) -> Writer:
    """Log everything from INFO on; `stop` what is returned, to write what is left."""
    global _writer
    _writer = Writer(fd)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers[:] = [_writer]
    _writer.start()
    return _writer


_LINE = {"time": 0.0, "level": "info"}
_EXCHANGE: dict[str, Any] = {**_LINE, "logger": "extproc.exchange", "message": "exchange"}
_ENDING: dict[str, Any] = {**_LINE, "logger": "extproc.finished", "message": "ending"}


def exchange_line() -> dict[str, Any]:
    """A line to be filled, of one exchange, for `append`: what `logging` would make of it, at a
    tenth of the cost."""
    return _EXCHANGE.copy()


def ending_line() -> dict[str, Any]:
    """A second one, of an exchange whose answer did not end whole: Envoy tells so later."""
    return _ENDING.copy()


def append(line: dict[str, Any]) -> None:
    line["time"] = time.time()
    _writer.append(line)


def dropped_lines() -> int:
    return _writer.dropped
