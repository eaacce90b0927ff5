"""What a request is answered without a model: refusals, the list of models, a cached answer.

Raised anywhere on a request's way, sent in one place.
"""

from functools import cache
from math import ceil

from extproc import openai
from extproc.limits import Refused, Rules

Headers = tuple[tuple[str, str], ...]


class Answered(Exception):
    """The request is answered here. `decision`: one word for metrics and the log."""

    def __init__(
        self,
        decision: str,
        status: int,
        body: bytes,
        headers: Headers = (),
        content_type: str = "application/json",
        limits: Headers = (),
    ) -> None:
        super().__init__(decision)
        self.decision = decision
        self.status = status
        self.body = body
        self.limits = limits
        """What the tenant has left: see wire.admit."""
        self.headers: Headers = (("content-type", content_type), *headers)


def refused(
    status: int, code: str, message: str, param: str | None = None, headers: Headers = ()
) -> Answered:
    """An error that the same request would meet again."""
    kind = "permission_error" if status == 403 else "invalid_request_error"
    return Answered(code, status, openai.error_body(message, kind, code, param), headers)


def try_later(code: str, message: str, seconds: int, headers: Headers = ()) -> Answered:
    """429 with a Retry-After of so many seconds."""
    body, retry_after = _try_later(code, message, seconds)
    return Answered(code, 429, body, retry_after + headers)


@cache
def _try_later(
    code: str, message: str, seconds: int, kind: str = "rate_limit_error"
) -> tuple[bytes, Headers]:
    """There are few: `seconds` is 1 to 60, codes and messages are our own."""
    body = openai.error_body(f"{message} Try again in {seconds} s.", kind, code)
    return body, (("retry-after", str(seconds)),)


_LONGEST_S = 60


def limited(refusal: Refused, rules: Rules) -> Answered:
    """What a tenant's limits refuse, as OpenAI says it: its `type` is what there is too much of.
    `rules`: the tenant's."""
    seconds = min(max(ceil(refusal.retry_after_s), 1), _LONGEST_S)
    if refusal.which == "budget":
        return Answered("budget_exceeded", 429, *_budget_exceeded(refusal), limits=refusal.headers)
    if refusal.which == "away":
        message = f"Your limits cannot be looked up. Try again in {seconds} s."
        body = openai.error_body(message, "server_error", "limits_unavailable")
        return Answered("limits_unavailable", 503, body, (("retry-after", str(seconds)),))
    if refusal.which == "concurrent":
        kind = "requests"
        message = f"As many of your requests run as may at once: {rules.concurrent}."
    else:
        kind = refusal.which
        rate = rules.tokens if kind == "tokens" else rules.requests
        assert rate is not None
        message = (
            f"You may use {rate.per_minute:,} {kind} a minute, and at most {int(rate.most):,} of "
            "them at once. These are used."
        )
    body, headers = _try_later("rate_limit_exceeded", message, seconds, kind)
    return Answered("rate_limit_exceeded", 429, body, headers, limits=refusal.headers)


def _budget_exceeded(refusal: Refused) -> tuple[bytes, Headers]:
    """No Retry-After: clients would wait for it."""
    new = refusal.ends_at.isoformat().replace("+00:00", "Z") if refusal.ends_at else "later"
    message = f"What is left of your budget is not enough for this request. A new one begins {new}."
    body = openai.error_body(message, "insufficient_quota", "budget_exceeded")
    return body, (("x-should-retry", "false"),)
