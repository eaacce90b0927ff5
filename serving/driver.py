"""Gives the engine real time: one timer for all sequences, and delivery of what a step produced.

Must never decide who runs (that is `engine/`) or know what a token looks like on the wire.
"""

import asyncio
import time
from collections.abc import Iterable

from serving.engine import Engine, Event, Sequence
from serving.metrics import Stats


class EngineDriver:
    """Steps the engine whenever a step is due. Belongs to one event loop.

    A step that ends late by less than its own length counts as on time, so that timer errors do
    not add up and the mean step takes what the model says; a process that is later than that runs
    behind.
    """

    def __init__(self, engine: Engine, stats: Stats) -> None:
        self._engine = engine
        self._stats = stats
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Start (or queue) these; each one's `deliver` gets its events from now on."""
        self._engine.add(sequences, time.monotonic())
        self._set_timer()

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests with what they have; their sequences get an "abort" event now."""
        now = time.monotonic()
        for request_id in request_ids:
            events = self._engine.abort(request_id, now)
            for event in events:
                self._stats.count_end(event.sequence)
                event.sequence.deliver(event)
        self._set_timer()

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """Drop what is left of these; no events. For clients that are gone; ended ones are fine."""
        for sequence in self._engine.cancel(sequences, time.monotonic()):
            self._stats.count_end(sequence)
        self._set_timer()

    def close(self) -> None:
        """No step will follow."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self.close()
        due = self._engine.next_step_at()
        if due is not None:
            delay_s = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._step, due)

    def _step(self, due: float) -> None:
        late = time.monotonic() - due >= self._engine.step_s
        now = time.monotonic() if late else due
        events: list[Event] = self._engine.step(now)
        self._stats.count_step(events, now)
        for event in events:
            event.sequence.deliver(event)
        self._set_timer()
