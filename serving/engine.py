"""The scheduler of the simulated server: who runs, who waits, who gets a token at which moment.

Pure: the clock is an argument and time only moves by `step(now)`. It must never sleep, do I/O,
or know HTTP or JSON. `driver.py` gives it real time.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

HELD = "held"  # not an end: the sequence keeps its place but falls silent (a fault's doing)


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer being generated. The first seven fields say what to do, the rest is progress.

    `request_id` is the id that an abort names; several sequences may share it. `hold_after`
    is for faults: after that many tokens the sequence is silent for ever but keeps its slot.
    The engine never calls `deliver`; whoever drives the engine hands it the events.
    Times are in seconds, on the clock that the caller of `add` and `step` uses.
    """

    request_id: str
    index: int
    prompt_tokens: int
    max_tokens: int
    end_reason: str
    hold_after: int | None
    deliver: Callable[["Event"], None]

    tokens: int = 0
    held: bool = False
    ended: str | None = None
    arrived_at: float = 0.0
    admitted_at: float | None = None
    ready_at: float = 0.0
    first_token_at: float | None = None
    ended_at: float | None = None


class Event(NamedTuple):
    """What happened to a sequence: it has `tokens` by now; `fresh` if the last one is new;
    `ended` is None, HELD, or the reason of its end ("stop", "length", "abort")."""

    sequence: Sequence
    tokens: int
    fresh: bool
    ended: str | None


class Engine:
    """Continuous batching with a fixed number of places.

    State: `running` (at most `max_num_seqs`) and `waiting`, both in order of arrival; a sequence
    is in exactly one of them from `add` until its end. Only `_admit` moves one from waiting to
    running, and whenever somebody waits, all places are taken.

    A step gives one token to every running sequence whose prefill is over, then fills the places
    that became free. Prefill takes a time in proportion to the prompt and goes on beside the
    decoding of others without slowing it.
    """

    def __init__(
        self, *, max_num_seqs: int, prefill_s_per_token: float, decode_s_per_token: float
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.prefill_s_per_token = prefill_s_per_token
        self.decode_s_per_token = decode_s_per_token
        self.running: OrderedDict[Sequence, None] = OrderedDict()
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._by_request_id: dict[str, list[Sequence]] = {}
        self._stepped_at = float("-inf")

    def add(self, sequence: Sequence, now: float) -> None:
        """Let it run if a place is free, else put it at the end of the queue."""
        sequence.arrived_at = now
        self.waiting[sequence] = None
        self._by_request_id.setdefault(sequence.request_id, []).append(sequence)
        self._admit(now)

    def next_step_at(self) -> float | None:
        """When the next step is due; None while there is nothing to do.

        As long as something decodes, steps keep an even distance; after a pause, the next step
        comes when the first prefill ends.
        """
        live = [sequence for sequence in self.running if not sequence.held]
        if not live:
            return None
        if any(sequence.tokens for sequence in live):
            return self._stepped_at + self.decode_s_per_token
        return min(sequence.ready_at for sequence in live)

    def step(self, now: float) -> list[Event]:
        """One iteration: a token for each sequence that is ready, ends, then admissions."""
        self._stepped_at = now
        events: list[Event] = []
        for sequence in self.running:
            if sequence.ready_at > now or sequence.held:
                continue
            if sequence.tokens == sequence.hold_after:
                sequence.held = True
                events.append(Event(sequence, sequence.tokens, False, HELD))
                continue
            sequence.tokens += 1
            if sequence.tokens == 1:
                sequence.first_token_at = now
            if sequence.tokens == sequence.max_tokens:
                sequence.ended = sequence.end_reason
            events.append(Event(sequence, sequence.tokens, True, sequence.ended))
        self._remove((e.sequence for e in events if e.sequence.ended), now)
        return events

    def abort(self, request_id: str, now: float) -> list[Event]:
        """End all sequences of this id with what they have. Unknown ids are a no-op, and a
        sequence that is to fall silent now does not react, as a stalled server would not."""
        events: list[Event] = []
        for sequence in self._by_request_id.get(request_id, ()):
            if sequence.tokens != sequence.hold_after:
                sequence.ended = "abort"
                events.append(Event(sequence, sequence.tokens, False, "abort"))
        self._remove((event.sequence for event in events), now)
        return events

    def cancel(self, sequences: Iterable[Sequence], now: float) -> list[Sequence]:
        """Drop these without a word: nobody listens any more. Returns those not yet ended."""
        dropped = [sequence for sequence in sequences if not sequence.ended]
        for sequence in dropped:
            sequence.ended = "abort"
        self._remove(dropped, now)
        return dropped

    def _remove(self, ended: Iterable[Sequence], now: float) -> None:
        """Take ended sequences off both lists, then fill the places they leave."""
        for sequence in ended:
            sequence.ended_at = now
            if sequence in self.running:
                del self.running[sequence]
            else:
                del self.waiting[sequence]
            same_id = self._by_request_id[sequence.request_id]
            same_id.remove(sequence)
            if not same_id:
                del self._by_request_id[sequence.request_id]
        self._admit(now)

    def _admit(self, now: float) -> None:
        while self.waiting and len(self.running) < self.max_num_seqs:
            sequence, _ = self.waiting.popitem(last=False)
            # A step that counts as on time may be dated just before an arrival.
            sequence.admitted_at = max(now, sequence.arrived_at)
            prefill_s = sequence.prompt_tokens * self.prefill_s_per_token
            sequence.ready_at = sequence.admitted_at + prefill_s
            self.running[sequence] = None
