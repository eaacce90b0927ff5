"""Fits the step model to measured points. Pure: numbers in, numbers out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.engine import StepTime


@dataclass(frozen=True)
class Point:
    """So many decoding sequences and prompt tokens took so long: for decodes a step, for a prompt
    the whole wait for its first token as the client saw it, HTTP included."""

    decoding: int
    prefill_tokens: int
    measured_s: float

    @property
    def name(self) -> str:
        if self.prefill_tokens:
            return f"prompt of {self.prefill_tokens} tokens"
        return f"{self.decoding} decoding"


@dataclass(frozen=True)
class Fit:
    """The model that comes closest, and how close.

    request_s  what each request costs once, outside of any step: HTTP, parsing, the way there
    """

    step_time: StepTime
    request_s: float
    points: Sequence[Point]

    def fitted_s(self, point: Point) -> float:
        step_s = self.step_time.seconds(point.decoding, point.prefill_tokens)
        return step_s + self.request_s if point.prefill_tokens else step_s

    def error(self, point: Point) -> float:
        """(fitted - measured) / measured"""
        return self.fitted_s(point) / point.measured_s - 1


def fit(points: Sequence[Point]) -> Fit:
    """Least squares of the relative errors, so that a short step counts as much as a long one,
    over models without negative times: where the best one has some, the most negative part is left
    out and the rest fitted anew. Wants two batch sizes and two lengths of prompts or more."""
    measured = np.array([point.measured_s for point in points])
    parts = np.array(
        [[1, one.decoding, one.prefill_tokens, one.prefill_tokens > 0] for one in points],
        dtype=float,
    )
    relative = parts / measured[:, None]
    kept = list(range(parts.shape[1]))
    while True:
        solved, *_ = np.linalg.lstsq(relative[:, kept], np.ones(len(points)), rcond=None)
        if solved.min() >= 0:
            break
        del kept[int(solved.argmin())]
    seconds = dict(zip(kept, solved.tolist(), strict=True))
    base_s, per_decode_seq_s, per_prefill_token_s, request_s = (
        seconds.get(part, 0.0) for part in range(4)
    )
    return Fit(
        StepTime(
            base_s=base_s,
            per_decode_seq_s=per_decode_seq_s,
            per_prefill_token_s=per_prefill_token_s,
        ),
        request_s,
        points,
    )
