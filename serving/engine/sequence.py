"""One answer being generated, and what is told about it. Data only: must never decide anything."""

from collections import abc
from dataclasses import dataclass, field
from typing import NamedTuple

from serving.engine.kv_blocks import Holding

HELD = "held"  # not an end: the sequence keeps its place but falls silent (a fault's doing)


@dataclass(slots=True, eq=False)
class Sequence:
    """The first nine fields say what to do, the rest is progress.

    request_id     the id that an abort names; several sequences may share it
    hold_after     for faults: after that many tokens the sequence is silent for ever but keeps its
                   place and its blocks
    deliver        never called by the engine: whoever drives it hands over the events
    block_hashes   of the prompt's full blocks, see `block_hashes`; none: nothing is shared
    is_vector      its one token stands for a vector, and counts as none
    tokens         generated and told so far
    computed       tokens of prompt and answer whose KV entries exist (or do when the step ends)
    cached_tokens  of the prompt, found in the prefix cache when it was first admitted
    parked         static batching only: all is computed, the last token waits for the batch's end
    gap_s          between its last two tokens

    Times are in seconds, on the clock that the caller of `add` and `step` uses.
    """

    request_id: str
    index: int
    prompt_tokens: int
    max_tokens: int
    end_reason: str
    hold_after: int | None
    deliver: abc.Callable[["Event"], None]
    block_hashes: abc.Sequence[int] = ()
    is_vector: bool = False

    tokens: int = 0
    computed: int = 0
    cached_tokens: int = 0
    blocks: Holding = field(default_factory=Holding)
    parked: bool = False
    held: bool = False
    ended: str | None = None
    arrived_at: float = 0.0
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0
    gap_s: float = 0.0
    ended_at: float | None = None

    @property
    def known(self) -> int:
        """Tokens of prompt and answer; all of them must be computed before the next one."""
        return self.prompt_tokens + self.tokens


class Event(NamedTuple):
    """What happened to a sequence: it has `tokens` by now; `fresh` if the last one is new;
    `ended` is None, HELD, or the reason of its end ("stop", "length", "abort")."""

    sequence: Sequence
    tokens: int
    fresh: bool
    ended: str | None
