"""The most tokens that an answer may have, where the policy allows fewer than its client. Pure.

Each cap only lowers, and the tightest is named. Nothing here changes a body: that is
`openai.with_changes`.
"""

from typing import Literal, TypeAlias

from extproc.admission import needed_s
from extproc.finished import Measured
from extproc.openai import Request
from extproc.openai.replies import invalid

Why: TypeAlias = Literal["", "tenant", "deadline", "shorter"]
"""What lowered a limit; empty: nothing did."""

# Of the time that is left so much is not counted on: the measured times are those of answers that
# ended, and the next one may meet a fuller server.
_MARGIN = 0.1


def lower_to_tenants(request: Request, most_tokens: int | None) -> None:
    """By `tenants.NAME.max_output_tokens`. It is fixed, so that whatever is decided later (the
    pool, the key in a cache) is decided for the request as its server is to get it. Raises ApiError
    for a request that wants at least more than that: else any client could ask its way past it."""
    if most_tokens is None:
        return
    if request.min_tokens > most_tokens:
        raise invalid(
            f"`min_tokens` must be at most {most_tokens}: an answer for your account has no more.",
            "min_tokens",
        )
    if request.may_have_more_than(most_tokens):
        request.lower_limit(most_tokens)


def lower(request: Request, *, fitting: int | None, shorter: int | None) -> Why:
    """By what fits before the deadline, and by admission.shorter_tokens for a request that had to
    wait. None: no such cap."""
    why: Why = "tenant" if request.lowered_to is not None else ""
    if fitting is not None and request.may_have_more_than(fitting):
        request.lower_limit(fitting)
        why = "deadline"
    if shorter is not None and request.may_have_more_than(shorter):
        request.lower_limit(shorter)
        why = "shorter"
    return why


def tokens_within(left_s: float, measured: Measured) -> int | None:
    """How many tokens a server of the pool writes in `left_s` seconds from a slot on; None: nothing
    was measured yet. Both the time to a first token and the time per token are taken as in most
    answers (mean and two deviations), and a tenth of the time is kept. Never below 1."""
    if not measured.token_s.count:
        return None
    writing_s = left_s * (1 - _MARGIN) - needed_s(measured.first_token_s)
    return max(int(writing_s / max(needed_s(measured.token_s), 1e-6)), 1)


def billed(request: Request, why: Why, fitting: int | None) -> tuple[int, int]:
    """For the costs: the cap of the policy's that holds, and the most that the answer could have
    had without one; 0: none. What fits before the deadline is of the latter kind: without that cap
    the answer would have been cut there, so it saves nothing."""
    asked = request.asked_tokens
    most = asked or 0
    if fitting is not None:
        most = fitting if asked is None else min(asked, fitting)
    cap = request.lowered_to if why in ("tenant", "shorter") else None
    return cap or 0, most
