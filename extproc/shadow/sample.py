"""A request that was drawn: what of it is kept until it is judged, and what it may cost. Pure."""

import time
from typing import Any, Literal, NamedTuple

from extproc.config import PriceConfig
from extproc.openai import Request, conversation, is_plain
from extproc.routing.features import Features, features

# Of a request's body: what all samples under way hold is bounded by it, and what a judge reads.
MOST_BODY_BYTES = 32 * 1024
# Of one answer. One that is cut there, and was not to be cut there, cannot be judged.
MOST_ANSWER_TOKENS = 1024
MOST_VERDICT_TOKENS = 64
# Of the judge's instructions, beside the conversation and both answers.
_INSTRUCTION_TOKENS = 300

Word = Literal[
    "recorded",
    "unfit",
    "too_large",
    "resting",
    "busy",
    "budget",
    "no_room",
    "model_failed",
    "cut",
    "judge_failed",
    "unclear",
    "file_failed",
    "failed",
    "ended",
]
"""What became of a sample. unfit: tools, pictures, several choices, or no chat; resting: after
failures; no_room: a pool has no free slot, or no server that answers; cut: an answer was too long
for us; unclear: the judge did not say yes or no; failed: a bug of ours; ended: the gateway or the
policy did."""
Unfit = Literal["unfit", "too_large"]


class Sample(NamedTuple):
    time_s: float
    """Unix time of the request."""
    features: Features
    members: dict[str, Any]
    """Of the request's body."""
    prompt_tokens_estimate: int
    answer_tokens: int
    """The most that an answer may have."""
    cut_is_ours: bool
    """The client would have let an answer be longer."""

    @property
    def conversation(self) -> list[tuple[str, str]]:
        return conversation(self.members)

    def most_usd(self, small: PriceConfig, large: PriceConfig, judge: PriceConfig) -> float:
        """What it costs if every answer is as long as it may be."""
        prompt, answer = self.prompt_tokens_estimate, self.answer_tokens
        judged = prompt + 2 * answer + _INSTRUCTION_TOKENS
        return (
            usd(small, prompt, answer)
            + usd(large, prompt, answer)
            + usd(judge, judged, MOST_VERDICT_TOKENS)
        )


def usd(price: PriceConfig, prompt_tokens: int, completion_tokens: int) -> float:
    return (prompt_tokens * price.input + completion_tokens * price.output) / 1e6


def sampled(request: Request, body_bytes: int) -> Sample | Unfit:
    """`request`: with its members; or why it cannot be judged. Conversations of several turns are
    taken as they are; calls of tools, pictures and several choices are not."""
    if body_bytes > MOST_BODY_BYTES:
        return "too_large"
    if not is_plain(request):
        return "unfit"
    limit = request.max_tokens
    cut_is_ours = limit is None or limit > MOST_ANSWER_TOKENS
    return Sample(
        time.time(),
        features(request.last_user_text),
        request.members,
        request.prompt_tokens_estimate,
        MOST_ANSWER_TOKENS if limit is None else min(limit, MOST_ANSWER_TOKENS),
        cut_is_ours,
    )
