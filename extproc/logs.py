"""One JSON object per line on standard error, written by a thread of its own.

A reader that stalls must not stall the event loop: above a bound lines are dropped and counted. No
line holds a prompt, an answer or a credential; who logs says only names, numbers and reasons.
"""

import logging
import logging.handlers
import queue
import sys
import time
from collections.abc import Mapping
from typing import Any

import orjson

_MOST_WAITING_LINES = 10_000
_LAST_LINES_S = 1.0


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if isinstance(facts := getattr(record, "facts", None), Mapping):
            line |= facts
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__  # its text might quote a prompt
        return orjson.dumps(line, default=str).decode()


class _Handler(logging.handlers.QueueHandler):
    """Hands records to the writing thread; never waits."""

    dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # formatted by the thread

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            _Handler.dropped += 1


def start() -> logging.handlers.QueueListener:
    """Log everything from INFO on; `stop` what is returned, to write what is left."""
    lines: queue.Queue[logging.LogRecord] = queue.Queue(_MOST_WAITING_LINES)
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers[:] = [_Handler(lines)]
    listener = logging.handlers.QueueListener(lines, out)
    listener.start()
    return listener


def stop(listener: logging.handlers.QueueListener) -> None:
    """Write what is left, but wait for no reader that has stalled: the thread is a daemon's."""
    thread = listener._thread  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    try:
        listener.queue.put_nowait(listener._sentinel)  # type: ignore[attr-defined]
    except queue.Full:
        return
    if thread is not None:
        thread.join(_LAST_LINES_S)


def dropped_lines() -> int:
    return _Handler.dropped
