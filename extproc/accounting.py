"""From a finished exchange, as Envoy logged it, to numbers: tokens, TTFT, TPOT, attempts.

The entry carries all it needs as tags, so it is never joined to an exchange in memory: another
processor may have admitted it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from extproc.openai import Usage

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


class Bill(NamedTuple):
    """Of an admitted request, what its cost depends on beside tokens and pool."""

    feature: str = ""
    batch: bool = False
    instead_of: str = ""
    """The pool to which it would have gone but for the rules; empty: to the same one."""
    answers: int = 1
    """How many it asked for: its choices, times its prompts."""
    cap_tokens: int = 0
    """Most tokens of each answer, as we cut it; 0: we did not."""
    most_tokens: int = 0
    """As the client wanted it; 0: it did not say."""


class Estimate(NamedTuple):
    """About what tokens an answer took that nobody counted, since it did not end. All 0: it was
    counted, or there is nothing to estimate."""

    prompt: int = 0
    cached: int = 0
    """Of `prompt`."""
    completion: int = 0


class _Counted(NamedTuple):
    """Tokens as the server counted them. None: it did not say."""

    prompt: int | None
    cached: int | None
    completion: int | None


class _Guarded(NamedTuple):
    reason: str
    counted: _Counted
    estimate: int | None


@dataclass(slots=True)
class Account:
    """What one answered exchange used. None: Envoy did not see it."""

    request_id: str
    tenant: str
    streamed: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    completion_estimate: int | None
    """Of a guarded stream that the processor ended."""
    has_failed: bool
    """The stream had an error event."""
    ended_by_us: str
    """Why, if it did: `deadline`, `stall`, `upstream_error`."""
    ttft_s: float | None
    """Request start to the first event, streamed answers only: a JSON answer has no first token."""
    server_ttft_s: float | None
    """Of it, what the server took that was tried last: from our request to it on."""
    charge: Charge | None
    body_bytes: int | None
    """Of the answer, as sent to the client; 0 for a stream without a token."""
    flags: str
    """Envoy's response flags, with commas; "-": none."""
    upstream_host: str
    """ip:port of the server that was tried last; "-" if none was."""
    bill: Bill
    tpot_s: float | None
    """(last byte - first event) / (completion tokens - 1), streamed answers that ended only."""


def read(tags: Mapping[str, str]) -> Account | None:
    """`tags`: the access log's custom_tags. None when the processor admitted nothing here."""
    kind = tags.get("kind", "-")
    if kind not in ("stream", "json"):
        return None
    streamed = kind == "stream"
    counted = _Counted(*(_number(tags, f"{kind}_tokens") for kind in _Counted._fields))
    guard = _read_guarded(tags)
    if counted.completion is None and guard is not None:
        counted = guard.counted
    completion = counted.completion
    # Comments may have kept the connection alive before the first token, or instead of it.
    alive_us = _alive_us(tags)
    has_begun = streamed and alive_us is not None
    first_us = _number(tags, "ttft_us") if has_begun else None
    server_us = _number(tags, "server_ttft_us") if has_begun else None
    generation_us = _number(tags, "generation_us") if has_begun else None
    alive_us = alive_us or 0
    tpot_s = None
    if generation_us is not None and completion is not None and completion > 1:
        tpot_s = max(generation_us - alive_us, 0) / 1e6 / (completion - 1)
    charge, bill = _told_by_us(tags.get("bill", "-"))
    return Account(
        request_id=tags.get("request_id", "-"),
        tenant=tags.get("tenant", "default"),
        streamed=streamed,
        prompt_tokens=counted.prompt,
        cached_tokens=counted.cached,
        completion_tokens=completion,
        completion_estimate=guard.estimate if guard and completion is None else None,
        has_failed=tags.get("failed", "-") == "1",
        ended_by_us=guard.reason if guard else "",
        ttft_s=None if first_us is None else (first_us + alive_us) / 1e6,
        tpot_s=tpot_s,
        server_ttft_s=None if server_us is None else (server_us + alive_us) / 1e6,
        charge=charge,
        body_bytes=_number(tags, "body_bytes") if has_begun or not streamed else 0,
        flags=tags.get("flags", "-"),
        upstream_host=tags.get("upstream_host", "-"),
        bill=bill,
    )


def guarded(reason: str, usage: Usage | None, estimate: int) -> str:
    """What the guard of a stream has seen of it, as a tag: `REASON PROMPT CACHED COMPLETION
    ESTIMATE`, `-` for none. `reason`: empty if the server ended it."""
    counts = (*(usage or (None, None, None)), estimate)
    return " ".join((reason or "-", *("-" if count is None else str(count) for count in counts)))


def _read_guarded(tags: Mapping[str, str]) -> _Guarded | None:
    parts = tags.get("guarded", "-").split(" ")
    if len(parts) != 5:
        return None
    *counts, estimate = map(_whole_number, parts[1:])
    return _Guarded(parts[0].strip("-"), _Counted(*counts), estimate)


def _alive_us(tags: Mapping[str, str]) -> int | None:
    """How long before its first event a stream had comments; None if it had nothing else."""
    told = tags.get("alive_us", "-")
    return 0 if told == "-" else _whole_number(told)


def _number(tags: Mapping[str, str], name: str) -> int | None:
    return _whole_number(tags.get(name, "-"))


def _whole_number(text: str) -> int | None:
    """Envoy writes '-' for what it does not have; a server may write anything."""
    if text == "-":
        return None
    try:
        number = int(float(text))
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 2**53 else None


def _told_by_us(text: str) -> tuple[Charge | None, Bill]:
    """Written by Exchange as `POOL TOKENS PROMPT FEATURE CLASS INSTEAD_OF ANSWERS CAP MOST PAYER`,
    whatever a payer's name has in it."""
    parts = text.split(" ", 9)
    if len(parts) < 10 or not all(map(str.isdecimal, (*parts[1:3], *parts[6:9]))):
        return None, Bill()  # an Envoy config without the tag
    pool, tokens, prompt, feature, request_class, instead_of, answers, cap, most, payer = parts
    batch = request_class == "batch"
    bill = Bill(feature, batch, instead_of, int(answers), int(cap), int(most))
    return Charge(pool, int(tokens), int(prompt), payer), bill
