"""What a request is answered without a model: refusals, the list of models, a cached answer.

Raised anywhere on a request's way, sent in one place.
"""

from functools import cache

from extproc import openai

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
    ) -> None:
        super().__init__(decision)
        self.decision = decision
        self.status = status
        self.body = body
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
def _try_later(code: str, message: str, seconds: int) -> tuple[bytes, Headers]:
    """There are few: `seconds` is 1 to 60, codes and messages are our own."""
    body = openai.error_body(f"{message} Try again in {seconds} s.", "rate_limit_error", code)
    return body, (("retry-after", str(seconds)),)
