"""What was done to the stack and when, so that what clients saw can be held against it.

Written by the weather's thread, read by the others. Moments are in seconds of time.monotonic().
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

# An effect may show so much later than its cause: these machines are slow at times.
_LATE_S = 1.5


class Times:
    def __init__(self) -> None:
        self._no_processor: list[tuple[float, float]] = []
        self._cutting: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def without_processor(self) -> Iterator[None]:
        self._no_processor.append((time.monotonic(), inf))
        try:
            yield
        finally:
            self._no_processor[-1] = (self._no_processor[-1][0], time.monotonic())

    def cutting(self, cause: str) -> None:
        """From now on answers may be cut, because of `cause`, until `mended(cause)`."""
        self._cutting.setdefault(cause, []).append((time.monotonic(), inf))

    def mended(self, cause: str) -> None:
        if spans := self._cutting.get(cause):
            spans[-1] = (spans[-1][0], min(spans[-1][1], time.monotonic()))

    def processor_was_gone(self, began: float, ended: float) -> bool:
        return _meet(self._no_processor, began, ended)

    def may_be_cut(self, began: float, ended: float) -> bool:
        spans = [*self._no_processor]
        for more in self._cutting.copy().values():
            spans += more
        return _meet(spans, began, ended)


def _meet(spans: list[tuple[float, float]], began: float, ended: float) -> bool:
    return any(began <= to + _LATE_S and ended >= since for since, to in spans)
