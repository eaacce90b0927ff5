"""From a finished exchange, as Envoy logged it, to numbers: tokens, TTFT, TPOT, attempts.

The entry carries all it needs, so it is never joined to an exchange in memory: another processor
may have admitted it.
"""

from typing import NamedTuple

from extproc.admission import Ask
from extproc.limits import Charged, read_charged
from extproc.openai import Request, Usage

LOG_LINES = (
    "%DYNAMIC_METADATA(forebay:kind)%",
    "%DYNAMIC_METADATA(forebay:tenant)%",
    "%REQ(X-REQUEST-ID)%",
    "%RESPONSE_CODE%",
    "%RESPONSE_CODE_DETAILS%",
    "%RESPONSE_FLAGS%",
    "%BYTES_SENT%",
    "%UPSTREAM_CLUSTER%",
    "%UPSTREAM_HOST%",
    "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "%DYNAMIC_METADATA(llm:prompt_tokens)%",
    "%DYNAMIC_METADATA(llm:cached_tokens)%",
    "%DYNAMIC_METADATA(llm:completion_tokens)%",
    "%DYNAMIC_METADATA(llm:failed)%",
    "%DYNAMIC_METADATA(forebay_request:guarded)%",
    "%DYNAMIC_METADATA(forebay_answer:alive_us)%",
    "%DYNAMIC_METADATA(forebay_request:bill)%",
    "%DYNAMIC_METADATA(forebay_tier:refused)%",
    "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:us)%",
    "%COMMON_DURATION(US_TX_BEG:US_RX_BODY_BEG:us)%",
    "%COMMON_DURATION(US_RX_BODY_BEG:US_RX_END:us)%",
)
"""What the log tells of an exchange, a line each, in the order in which `read` takes them; "-" is
nothing. No header can have a line break in it."""

# Answers of these statuses without a count of tokens may have made a server work all the same: 0 is
# a client that left, 504 an answer that did not end in time.
WORKED = (0, 200, 504)


class Charge(NamedTuple):
    """What was charged for the request when it was granted its slot."""

    pool: str
    tokens: int
    prompt_tokens: int
    """Of `tokens`, the prompt's: estimated from its text alone, the same for every pool."""
    payer: str
    """The tenant itself, not its label."""
    charged: Charged | None = None
    """Of the tenant's limits; None: it has none."""


class Bill(NamedTuple):
    """Of an admitted request, what its cost depends on beside tokens and pool."""

    feature: str = ""
    batch: bool = False
    instead_of: str = ""
    """The pool to which it would have gone but for the rules; empty: to the same one."""
    answers: int = 1
    """How many it asked for: its choices, times its prompts."""
    cap_tokens: int = 0
    """Most tokens of each answer, as we lowered it; 0: we did not."""
    most_tokens: int = 0
    """Without that: as the client wanted it, or as fits before the deadline; 0: no limit is known.
    """


class Estimate(NamedTuple):
    """About what tokens an answer took that nobody counted, since it did not end. All 0: it was
    counted, or there is nothing to estimate."""

    prompt: int = 0
    cached: int = 0
    """Of `prompt`."""
    completion: int = 0


NOTHING = Estimate()


class _Counted(NamedTuple):
    """Tokens as the server counted them. None: it did not say."""

    prompt: int | None
    cached: int | None
    completion: int | None


class _Guarded(NamedTuple):
    reason: str
    counted: _Counted
    estimate: int | None


class Account(NamedTuple):
    """What one answered exchange used, as Envoy saw it. None: it did not see that."""

    request_id: str
    tenant: str
    streamed: bool
    status: int
    """0: the client left before there was one."""
    details: str
    """Envoy's response code details."""
    flags: str
    """Envoy's response flags, with commas; "-": none."""
    body_bytes: int | None
    """Of the answer, as sent to the client; 0 for a stream without a token."""
    served_by: str
    """The cluster that answered last; "-" when none was tried."""
    upstream_host: str
    """ip:port of the server that was tried last; "-" if none was."""
    attempts: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    completion_estimate: int | None
    """Of a guarded stream that the processor ended."""
    has_failed: bool
    """The stream had an error event."""
    ended_by_us: str
    """Why, if it did: `deadline`, `stall`, `upstream_error`, or what an answer is stopped for."""
    charge: Charge | None
    bill: Bill
    refused: tuple[tuple[str, str], ...]
    """The tries that no client could mend: cluster and status, of wire.REFUSALS."""
    ttft_s: float | None
    """Request start to the first event, streamed answers only: a JSON answer has no first token."""
    server_ttft_s: float | None
    """Of it, what the server took that was tried last: from our request to it on."""
    tpot_s: float | None
    """(last byte - first event) / (completion tokens - 1), streamed answers that ended only."""
    json_s: float | None
    """Of an answer that is not streamed, what the server took that was tried last."""


def read(told: str) -> Account | None:
    """`told`: the LOG_LINES of one exchange. None when the processor admitted nothing here, or the
    Envoy config is of another version."""
    lines = told.split("\n")
    if len(lines) != len(LOG_LINES):
        return None
    # fmt: off
    (
        kind, tenant, request_id, status, details, flags, body_bytes,
        served_by, upstream_host, attempts,
        prompt, cached, completion, failed, by_guard, alive_us, bill_text, refused,
        ttft_us, server_ttft_us, generation_us,
    ) = lines
    # fmt: on
    streamed = kind == "stream"
    if not streamed and kind != "json":
        return None
    counted = _Counted(_number(prompt), _number(cached), _number(completion))
    guard = None if by_guard == "-" else _read_guarded(by_guard)
    if counted.completion is None and guard is not None:
        counted = guard.counted
    tokens = counted.completion
    body_sent = _number(body_bytes)
    ttft_s = server_ttft_s = tpot_s = None
    json_s = None if streamed else _seconds(server_ttft_us)
    if streamed:
        # Comments may have kept the connection alive before the first token, or instead of it.
        alive_s = 0.0 if alive_us == "-" else _seconds(alive_us)
        if alive_s is None:
            body_sent = 0
        else:
            ttft_s, server_ttft_s = _later(ttft_us, alive_s), _later(server_ttft_us, alive_s)
            generation_s = _seconds(generation_us)
            if generation_s is not None and tokens is not None and tokens > 1:
                tpot_s = max(generation_s - alive_s, 0.0) / (tokens - 1)
    charge, bill = _told_by_us(bill_text)
    return Account(
        request_id,
        tenant,
        streamed,
        _number(status) or 0,
        details,
        flags,
        body_sent,
        served_by,
        upstream_host,
        _number(attempts) or 0,
        *counted,
        guard.estimate if guard and tokens is None else None,
        failed == "1",
        guard.reason if guard else "",
        charge,
        bill,
        _read_refused(refused),
        ttft_s,
        server_ttft_s,
        tpot_s,
        json_s,
    )


def bill_told(
    pool: str,
    ask: Ask,
    request: Request,
    *,
    feature: str,
    request_class: str,
    instead_of: str,
    cap_tokens: int,
    most_tokens: int,
    charged: Charged | None,
    payer: str,
) -> str:
    """For the log, what is known of a request when it is admitted: POOL TOKENS PROMPT FEATURE CLASS
    INSTEAD_OF ANSWERS CAP MOST CHARGED PAYER. Read again as Charge and Bill."""
    return (
        f"{pool} {ask.tokens} {request.prompt_tokens_estimate} "
        f"{feature} {request_class} {instead_of or '-'} "
        f"{ask.weight} {cap_tokens} {most_tokens} "
        f"{charged.told() if charged else '-'} {payer}"
    )


def guarded(reason: str, usage: Usage | None, estimate: int) -> str:
    """What the guard of a stream has seen of it, as a tag: `REASON PROMPT CACHED COMPLETION
    ESTIMATE`, `-` for none. `reason`: empty if the server ended it."""
    counts = (*(usage or (None, None, None)), estimate)
    return " ".join((reason or "-", *("-" if count is None else str(count) for count in counts)))


def _read_guarded(text: str) -> _Guarded | None:
    parts = text.split(" ")
    if len(parts) != 5:
        return None
    *counts, estimate = map(_number, parts[1:])
    return _Guarded(parts[0].strip("-"), _Counted(*counts), estimate)


def _read_refused(text: str) -> tuple[tuple[str, str], ...]:
    """`hosted=401;large=404;`, as the tiers' filters write it."""
    if text == "-":
        return ()
    parts = (part.partition("=") for part in text.split(";") if part)
    return tuple((pool, status) for pool, _, status in parts)


def _later(text: str, by_s: float) -> float | None:
    seconds = _seconds(text)
    return None if seconds is None else seconds + by_s


def _seconds(text: str) -> float | None:
    us = _number(text)
    return None if us is None else us / 1e6


def _number(text: str) -> int | None:
    """Envoy writes '-' for what it does not have; a server may write anything."""
    if text.isdecimal() and len(text) < 16:
        return int(text)
    if text == "-":
        return None
    try:
        number = int(float(text))
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 2**53 else None


def _told_by_us(text: str) -> tuple[Charge | None, Bill]:
    """What bill_told has written, whatever a payer's name has in it."""
    parts = text.split(" ", 10)
    if len(parts) < 11 or not all(map(str.isdecimal, (*parts[1:3], *parts[6:9]))):
        return None, Bill()
    pool, tokens, prompt, feature, request_class, instead_of, answers, cap, most = parts[:9]
    charged, payer = parts[9:]
    batch = request_class == "batch"
    bill = Bill(feature, batch, instead_of, int(answers), int(cap), int(most))
    return Charge(pool, int(tokens), int(prompt), payer, read_charged(charged)), bill
