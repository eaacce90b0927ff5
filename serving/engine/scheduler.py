"""Who is computed in the next step: iteration-level scheduling as vLLM V1 does it.

Pure, with the clock as an argument. Must never know how long a step takes beyond asking
`step_time`, or where a block's content comes from.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable

from serving.engine.kv_blocks import KvBlocks
from serving.engine.sequence import HELD, Event, Sequence
from serving.engine.step_time import StepTime


class Engine:
    """Continuous batching with chunked prefill, paged KV blocks and a prefix cache.

    State: a sequence is in exactly one of three places from `add` until its end.
      arrived   came while a step ran; looked at when that ends (vLLM's input queue, in no gauge)
      waiting   has no blocks; first come, first served, those that were preempted in front
      running   has blocks and a place (at most `max_num_seqs`), in the order of admission
    `_start_step` alone moves them on and picks the next batch; `step` ends that batch's step, gives
    out its tokens, removes who is done, and starts the next one.

    max_num_batched_tokens  computed per step at most, decodes and prefills together
    num_kv_blocks           of `block_size` tokens each; a running sequence that finds none free
                            takes those of the last one, which starts again later (its told tokens
                            stay told)
    static_batching         a batch is formed when nothing runs, and nobody joins it; those who are
                            done early stay in it, computed along, and all end with the longest

    Counters since the start: `preemptions`, `prefix_queries` and `prefix_hits` (prompt tokens).
    """

    def __init__(
        self,
        *,
        step_time: StepTime,
        max_num_seqs: int,
        num_kv_blocks: int,
        block_size: int = 16,
        max_num_batched_tokens: int = 2048,
        static_batching: bool = False,
    ) -> None:
        self.step_time = step_time
        self.max_num_seqs = max_num_seqs
        self.block_size = block_size
        self.max_num_batched_tokens = max_num_batched_tokens
        self.static_batching = static_batching
        self.blocks = KvBlocks(num_kv_blocks)
        self.arrived: deque[Sequence] = deque()
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()
        self.running: list[Sequence] = []
        self.preemptions = self.prefix_queries = self.prefix_hits = 0
        self.step_s = 0.0
        """The length of the step that runs, or ran last."""
        self.batch: list[Sequence] = []
        """Who is computed in the step that runs."""
        self._ends_at: float | None = None
        self._by_request_id: dict[str, list[Sequence]] = {}

    def add(self, sequences: Iterable[Sequence], now: float) -> None:
        """Let these in together; an idle engine begins a step with them at once."""
        for sequence in sequences:
            sequence.arrived_at = now
            self.arrived.append(sequence)
            self._by_request_id.setdefault(sequence.request_id, []).append(sequence)
        if self._ends_at is None:
            self._start_step(now)

    def next_step_at(self) -> float | None:
        """When the step that runs ends; None while there is nothing to do."""
        return self._ends_at

    def step(self, now: float) -> list[Event]:
        """End the step that runs: a token for each sequence that is computed to its end. Then
        start the next one."""
        batch, self.batch = self.batch, []
        self._ends_at = None
        events: list[Event] = []
        for sequence in batch:
            if sequence.parked or sequence.ended or sequence.computed < sequence.known:
                continue
            if sequence.tokens == sequence.hold_after:
                sequence.held = True
                events.append(Event(sequence, sequence.tokens, False, HELD))
            elif self.static_batching and sequence.tokens + 1 == sequence.max_tokens:
                sequence.parked = True
            else:
                events.append(_token(sequence, now))
        if self.static_batching and all(one.parked or one.held for one in self.running):
            events += [_token(one, now) for one in self.running if one.parked]
        self._remove([event.sequence for event in events if event.sequence.ended], now)
        self._start_step(now)
        return events

    def abort(self, request_id: str, now: float) -> list[Event]:
        """End all sequences of this id with what they have. Unknown ids are a no-op, and a
        sequence that is to fall silent now does not react, as a stalled server would not."""
        events: list[Event] = []
        for sequence in self._by_request_id.get(request_id, ()):
            if sequence.tokens != sequence.hold_after:
                sequence.ended = "abort"
                events.append(Event(sequence, sequence.tokens, False, "abort"))
        self._drop([event.sequence for event in events], now)
        return events

    def cancel(self, sequences: Iterable[Sequence], now: float) -> list[Sequence]:
        """Drop these without a word: nobody listens any more. Returns those not yet ended."""
        dropped = [sequence for sequence in sequences if not sequence.ended]
        for sequence in dropped:
            sequence.ended = "abort"
        self._drop(dropped, now)
        return dropped

    def _drop(self, sequences: list[Sequence], now: float) -> None:
        """A step that runs goes on without them; an engine that had no step to do may have one."""
        self._remove(sequences, now)
        if self._ends_at is None:
            self._start_step(now)

    def _remove(self, ended: list[Sequence], now: float) -> None:
        """Take ended sequences out of their place and give their blocks back."""
        for sequence in ended:
            sequence.ended_at = now
            sequence.parked = False
            self.blocks.release(sequence.blocks)
            if sequence.admitted_at is None and sequence in self.arrived:
                self.arrived.remove(sequence)
            else:
                self.waiting.pop(sequence, None)
            same_id = self._by_request_id[sequence.request_id]
            same_id.remove(sequence)
            if not same_id:
                del self._by_request_id[sequence.request_id]
        if ended:
            self.running = [sequence for sequence in self.running if not sequence.ended]

    # One step: the running ones first, then who waits.

    def _start_step(self, now: float) -> None:
        """Pick the next batch. A step that counts as on time may begin just before an arrival:
        then that one is left for the next, or the step begins when it comes."""
        while True:
            while self.arrived and self.arrived[0].arrived_at <= now:
                self.waiting[self.arrived.popleft()] = None
            if self._pick(now) or not self.arrived:
                return
            now = self.arrived[0].arrived_at

    def _pick(self, now: float) -> bool:
        """Fill the batch and set the step's end; False if nobody can be computed."""
        budget = self.max_num_batched_tokens
        decoding = 0
        batch = self.batch
        may_join = not (self.static_batching and self.running)
        index = 0
        while index < len(self.running) and budget:
            sequence = self.running[index]
            index += 1
            if sequence.held:
                continue
            tokens = 1
            if sequence.parked:
                decoding += 1
            else:
                missing = sequence.known - sequence.computed
                tokens = min(missing, budget)
                if not self._make_room(sequence, tokens):
                    break
                if missing == 1 and sequence.tokens:
                    decoding += 1
                self._compute(sequence, tokens)
            batch.append(sequence)
            budget -= tokens
        if may_join:
            budget = self._admit(budget, now)
        if not batch:
            return False
        prefill_tokens = self.max_num_batched_tokens - budget - decoding
        self.step_s = self.step_time.seconds(decoding, prefill_tokens)
        self._ends_at = now + self.step_s
        return True

    def _admit(self, budget: int, now: float) -> int:
        """Let in who waits, in order, as long as places, budget and blocks allow. Returns the
        budget that is left. A static batch takes no notice of the budget: its prompts may be
        computed in several steps."""
        while self.waiting and len(self.running) < self.max_num_seqs:
            if not budget and not self.static_batching:
                break
            sequence = next(iter(self.waiting))
            known, hashes = sequence.known, sequence.block_hashes
            # The last token is always computed: the next one comes from it.
            hits = self.blocks.hits(hashes, (known - 1) // self.block_size)
            # The whole prompt must fit, not only its first chunk (vLLM: reserve_full_isl).
            if not self.blocks.fits(-(-known // self.block_size), hashes, hits):
                break
            del self.waiting[sequence]
            self.running.append(sequence)
            self.blocks.share(sequence.blocks, hashes, hits)
            sequence.computed = hits * self.block_size
            if sequence.admitted_at is None:
                sequence.admitted_at = now
                sequence.cached_tokens = sequence.computed
                self.prefix_queries += sequence.prompt_tokens
                self.prefix_hits += sequence.computed
            tokens = min(known - sequence.computed, budget)
            room = known if self.static_batching else sequence.computed + tokens
            self.blocks.grow(sequence.blocks, -(-room // self.block_size))
            if tokens:
                self._compute(sequence, tokens)
                self.batch.append(sequence)
                budget -= tokens
        return budget

    def _compute(self, sequence: Sequence, tokens: int) -> None:
        """Its next tokens belong to this step; prompt blocks that get full can be shared."""
        sequence.computed += tokens
        if sequence.blocks.published < len(sequence.block_hashes):
            full_blocks = sequence.computed // self.block_size
            self.blocks.publish(sequence.blocks, sequence.block_hashes, full_blocks)

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for its next tokens, taken from the last-come running one if need be; False if
        that is the sequence itself."""
        if tokens == 1 and sequence.computed % self.block_size:
            return True  # the block of the token before it has a place left
        blocks = -(-(sequence.computed + tokens) // self.block_size)
        while not self.blocks.grow(sequence.blocks, blocks):
            victim = next(one for one in reversed(self.running) if not one.held)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the front of the queue, without blocks: all it had is computed again. It cannot
        come back in this step, and lets nobody pass: it needs more than it gave."""
        self.running.remove(sequence)
        self.blocks.release(sequence.blocks)
        sequence.computed = 0
        sequence.parked = False
        self.waiting[sequence] = None
        self.waiting.move_to_end(sequence, last=False)
        self.preemptions += 1


def _token(sequence: Sequence, now: float) -> Event:
    """Its next token, told now."""
    sequence.tokens += 1
    if sequence.tokens == 1:
        sequence.first_token_at = now
    else:
        sequence.gap_s = now - sequence.last_token_at
    sequence.last_token_at = now
    if sequence.tokens == sequence.max_tokens:
        sequence.ended = sequence.end_reason
    return Event(sequence, sequence.tokens, True, sequence.ended)
