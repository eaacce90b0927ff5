"""What one simulated vLLM server is told at its start: names, sizes, speeds.

Plain numbers only, checked once. Must never read files, the environment or the clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.engine import StepTime


@dataclass(frozen=True, kw_only=True)
class SimSettings:
    """Settings of one simulated server. Raises ValueError when one makes no sense.

    models                    names it answers to; responses always carry the first one
    max_num_seqs              sequences that run at once; the others wait, first come first served
    max_num_batched_tokens    tokens computed per step at most; a longer prompt takes several steps
    max_model_len             most tokens of prompt plus answer
    block_size                tokens in a KV block
    num_kv_blocks             None: enough for all places at full length
    static_batching           a batch forms when nothing runs, and ends as a whole
    decode_ms_per_token       a step in which one sequence decodes; 0 means as fast as the CPU can
    decode_ms_per_seq         what each further decoding sequence adds to a step
    prefill_ms_per_1k_tokens  what 1,000 prompt tokens add to the step that computes them
    step_time                 a calibrated model instead of the three before
    default_max_tokens        length of an answer when the request names no max_tokens; it then ends
                              with "stop". An answer with max_tokens is exactly that long ("length")
    abort_enabled             False answers 403 to /inference/v1/abort_requests
    api_key                   if set, /v1/* and /inference/* want `Authorization: Bearer <api_key>`
    keep_alive_interval_s     if set, a stream gets `: keep-alive` comments until its first token
    faults                    the faults to begin with, in the shape of POST /sim/faults
    seed                      of the draws for faults whose probability is below 1
    """

    port: int
    host: str = "127.0.0.1"
    models: Sequence[str] = ("simulated",)
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    block_size: int = 16
    num_kv_blocks: int | None = None
    static_batching: bool = False
    decode_ms_per_token: float = 20.0
    decode_ms_per_seq: float = 0.0
    prefill_ms_per_1k_tokens: float = 100.0
    step_time: StepTime | None = None
    default_max_tokens: int = 64
    abort_enabled: bool = True
    api_key: str | None = None
    keep_alive_interval_s: float | None = None
    faults: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.models, str) or not self.models or not all(self.models):
            raise ValueError("models: want a list of at least one name")
        for name in ("max_num_seqs", "default_max_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        if self.max_model_len < 2:
            raise ValueError("max_model_len: must be at least 2 (one token in, one out)")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens: must be at least max_num_seqs")
        if self.kv_blocks < self._blocks_per_place:
            raise ValueError(
                f"num_kv_blocks: must be at least {self._blocks_per_place}, for one sequence of "
                f"max_model_len={self.max_model_len} tokens"
            )
        for name in ("prefill_ms_per_1k_tokens", "decode_ms_per_token", "decode_ms_per_seq"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be 0 or more, and finite")
        if self.keep_alive_interval_s is not None and not self.keep_alive_interval_s > 0:
            raise ValueError("keep_alive_interval_s: must be above 0")
        self.model_of_steps()

    @property
    def _blocks_per_place(self) -> int:
        return -(-self.max_model_len // self.block_size)

    @property
    def kv_blocks(self) -> int:
        """How many KV blocks there are."""
        if self.num_kv_blocks is not None:
            return self.num_kv_blocks
        return self.max_num_seqs * self._blocks_per_place

    def model_of_steps(self) -> StepTime:
        """How long a step takes. Raises ValueError."""
        return self.step_time or StepTime.of_knobs(
            decode_ms=self.decode_ms_per_token,
            decode_ms_per_seq=self.decode_ms_per_seq,
            prefill_ms_per_1k=self.prefill_ms_per_1k_tokens,
        )
