"""Remembers the last requests that reached the model, so that a test can prove what did.

Keeps bytes as they came. Must never change, parse or answer a request.
"""

import base64
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from serving.engine import Sequence

_KEPT = 1000


class Received:
    """One received request and how it ended.

    `ended` is None (going on), "stop", "length", "abort", "disconnected" (the client left),
    "fault" (a fault of /sim/faults struck) or "rejected" (answered with an error of its own).
    """

    def __init__(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.id = headers.get("x-request-id")
        self.path = path
        self.headers = headers
        self.body = body
        self.received_at = time.time()
        self.sequences: list[Sequence] = []
        self.ended: str | None = None

    def end(self, how: str) -> None:
        """Say how it ended; only the first call counts."""
        if self.ended is None:
            self.ended = how

    def describe(self) -> dict[str, Any]:
        """The record as JSON: received_at in seconds since 1970, tokens generated so far."""
        return {
            "id": self.id,
            "path": self.path,
            "headers": self.headers,
            "body_base64": base64.b64encode(self.body).decode(),
            "received_at": self.received_at,
            "ended": self.ended,
            "tokens": sum(sequence.tokens for sequence in self.sequences),
        }


class ReceivedLog:
    """The last 1,000 requests, oldest first; how many there were since the start, and how many are
    still being answered."""

    def __init__(self) -> None:
        self.total = 0
        self.open = 0
        self._kept: deque[Received] = deque(maxlen=_KEPT)

    def add(self, received: Received) -> None:
        self.total += 1
        self._kept.append(received)

    def clear(self) -> None:
        """Forget the requests; `total` goes on counting."""
        self._kept.clear()

    def describe(self) -> dict[str, Any]:
        """{"total": N, "open": N, "requests": [...]}, oldest first."""
        requests = [one.describe() for one in self._kept]
        return {"total": self.total, "open": self.open, "requests": requests}
