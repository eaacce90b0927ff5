"""What one simulated vLLM server is told at its start: names, sizes, speeds.

Plain numbers only, checked once. Must never read files, the environment or the clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SimSettings:
    """Settings of one simulated server. Raises ValueError when one makes no sense.

    models                    names it answers to; responses always carry the first one
    max_num_seqs              sequences that run at once; the others wait, first come first served
    max_model_len             most tokens of prompt plus answer
    prefill_ms_per_1k_tokens  time from a sequence's admission to its first token, per 1,000 tokens
                              of prompt (prefill does not slow the sequences that decode)
    decode_ms_per_token       TPOT: the time between two steps; 0 means as fast as the CPU can
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
    max_model_len: int = 8192
    prefill_ms_per_1k_tokens: float = 100.0
    decode_ms_per_token: float = 20.0
    default_max_tokens: int = 64
    abort_enabled: bool = True
    api_key: str | None = None
    keep_alive_interval_s: float | None = None
    faults: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.models, str) or not self.models or not all(self.models):
            raise ValueError("models: want a list of at least one name")
        for name in ("max_num_seqs", "default_max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        if self.max_model_len < 2:
            raise ValueError("max_model_len: must be at least 2 (one token in, one out)")
        for name in ("prefill_ms_per_1k_tokens", "decode_ms_per_token"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be 0 or more, and finite")
        if self.keep_alive_interval_s is not None and not self.keep_alive_interval_s > 0:
            raise ValueError("keep_alive_interval_s: must be above 0")
