"""How long one step of the engine takes: a small linear model of what is in the batch.

Must never look at anything but these counts: then it can be fitted to a real server
(`serving/calibrate`), and a test can say what a step must take.
"""

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """step_s = base + per_decode_seq * decoding sequences + per_prefill_token * prompt tokens.

    All in seconds. Raises ValueError for a number that is negative or not finite.
    """

    base_s: float
    per_decode_seq_s: float = 0.0
    per_prefill_token_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name}: {value!r} is not a number")
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}: must be 0 or more, and finite")

    @classmethod
    def of_knobs(
        cls, *, decode_ms: float, decode_ms_per_seq: float, prefill_ms_per_1k: float
    ) -> "StepTime":
        """decode_ms is a step with one decoding sequence; each further one adds
        decode_ms_per_seq. Raises ValueError."""
        if decode_ms_per_seq > decode_ms:
            raise ValueError("decode_ms_per_seq: cannot be above decode_ms, a step's whole time")
        return cls(
            base_s=(decode_ms - decode_ms_per_seq) / 1e3,
            per_decode_seq_s=decode_ms_per_seq / 1e3,
            per_prefill_token_s=prefill_ms_per_1k / 1e6,
        )

    def seconds(self, decoding: int, prefill_tokens: int) -> float:
        """The time of a step that computes one token for each of `decoding` sequences, and
        `prefill_tokens` tokens of prompts."""
        return (
            self.base_s
            + self.per_decode_seq_s * decoding
            + self.per_prefill_token_s * prefill_tokens
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(one.name for one in fields(cls))
