"""Server-sent events out of a byte stream, however it is split. Pure.

LF, CRLF, comments, several `data:` lines in one event, an end without a blank line. Only the data
is of interest here: event names and ids are skipped.
"""

import re
from collections.abc import Iterable, Iterator

import orjson

EVENT_END = re.compile(rb"(?>\r\n|\n|\r){2}")
"""A blank line."""


def stream_of(chunks: Iterable[object]) -> bytes:
    """A whole stream, or its end: an event for each chunk, then [DONE]."""
    return b"".join(b"data: " + orjson.dumps(c) + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"


class EventReader:
    """Feed pieces; get the data of each event that became whole. Holds at most one event."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that this piece completes, in order."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data.clear()
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events

    def end(self) -> list[bytes]:
        """The data of a last event that no blank line ended."""
        return self.feed(b"\n\n")


def whole_events(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each event of this piece of a stream begins, and its data; half an event at its end is
    not among them."""
    start = 0
    for blank in EVENT_END.finditer(stream):
        lines = stream[start : blank.start()].splitlines()
        data = (line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        yield start, b"\n".join(data)
        start = blank.end()
