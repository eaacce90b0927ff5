"""Members of a body that are for vLLM alone: found, and where to cut them out by byte span.

What vLLM 0.32's request model has beyond OpenAI's API (`tests/vllm/test_members.py` holds the lists
against it). Most requests have none of them, and pay for one look at their names. Never cuts in
silence what changes what an answer must be.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from extproc.openai.paths import CHAT
from extproc.openai.replies import invalid
from extproc.openai.request import Request, splices_of
from extproc.openai.spans import Span, members_at, without_quote_escapes

OURS = frozenset(
    ("priority", "cache_salt", "request_id", "kv_transfer_params", "ec_transfer_params")
)
"""No server gets these as a client wrote them: who goes first, and who shares a prefix cache, is
for the policy to say; by its id a request can be stopped; and where caches are to be fetched from
or kept for (hosts, blocks, files) is between servers and the router that stands before them."""

_XARGS = "vllm_xargs"
_XARGS_OF_ENGINE = ("kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode")
"""In these vLLM 0.32 finds what steers its engine, beside what custom code wants to know."""

HINTS = frozenset(
    ("session_id", "top_k", "min_p", "repetition_penalty", "length_penalty")
    + ("skip_special_tokens", "spaces_between_special_tokens", "include_reasoning")
    + ("repetition_detection", "stream_interval", "watermarking", "media_io_kwargs")
    + ("mm_processor_kwargs", "mm_payload", "return_mm_kwargs", "return_token_offsets")
    + ("routed_experts_prompt_start",)
)
"""How vLLM is to sample, or to work: another server does that its own way, so it is not told."""

CONTRACT: dict[str, object] = {
    "structured_outputs": None,
    "thinking_token_budget": None,
    "use_beam_search": False,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "truncate_prompt_tokens": None,
    "truncation_side": None,
    "prompt_logprobs": None,
    "logprob_token_ids": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": None,
    "documents": None,
    "chat_template": None,
    "chat_template_kwargs": None,
    "return_tokens_as_token_ids": False,
    "return_token_ids": False,
    "return_prompt_text": False,
    "vllm_xargs": None,
    "prompt_embeds": None,
    # Of vectors.
    "embed_dtype": "float32",
    "endianness": "native",
    "use_activation": None,
    "padding": None,
    # Of vLLM before 0.12, which clients still send.
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
    "guided_decoding_backend": None,
    "guided_whitespace_pattern": None,
}
"""What an answer must be, in a way that only vLLM understands; and the value that asks for nothing,
beside null."""

# vLLM's in a chat; OpenAI's own in a completion.
_ECHO = "echo"
_OPTIONS = "stream_options"
_CONTINUOUS = "continuous_usage_stats"

_LOOKED_AT = OURS | {_XARGS}
_OTHERS_LACK = OURS | HINTS | CONTRACT.keys() | {_ECHO, _OPTIONS}


class OwnMembers(NamedTuple):
    """Spans are of whole members with the comma that goes with them, in order, in the body that was
    parsed."""

    cuts: tuple[Span, ...] = ()
    """Of what a vLLM server gets."""
    other_cuts: tuple[Span, ...] = ()
    """Of what any other server gets."""
    contract: str = ""
    """A member that no other server could obey; empty: there is none."""
    salt: str = ""
    """The client's own cache_salt; empty: it has none."""


NOTHING = OwnMembers()


def own_members(request: Request, body: bytes, *, for_others: bool) -> OwnMembers:
    """`request` is what parse made of this very body. `for_others`: it may go to servers that are
    not vLLM. ApiError for a member of ours that is there twice, a salt that is none, or what would
    steer the engine."""
    members = request.members
    if (_OTHERS_LACK if for_others else _LOOKED_AT).isdisjoint(members):
        return NOTHING
    _refuse_steering(members.get(_XARGS))
    contract = _contract(request) if for_others else ""
    mine = OURS & members.keys()
    others = frozenset[str]()
    if for_others:
        kept = {_OPTIONS} if request.path == CHAT else {_OPTIONS, _ECHO}
        others = _OTHERS_LACK & members.keys() - kept
    if not mine and not others:
        return OwnMembers(contract=contract) if contract else NOTHING
    cuts, other_cuts = _cuts(body, mine, others)
    return OwnMembers(cuts, other_cuts, contract, _salt(members))


def moved(spans: Sequence[Span], request: Request, most_tokens: int | None) -> tuple[Span, ...]:
    """Where these spans are after with_changes. What that puts in is never inside of one."""
    splices = splices_of(request, most_tokens)

    def there(at: int) -> int:
        return at + sum(len(new) - (end - start) for start, end, new in splices if end <= at)

    return tuple((there(start), there(end)) for start, end in spans)


def _salt(members: dict[str, Any]) -> str:
    salt = members.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt:
        raise invalid("`cache_salt` must be a string that is not empty.", "cache_salt")
    return salt


def _refuse_steering(xargs: object) -> None:
    """Cut, the rest would be written anew; and nobody sends these by mistake."""
    for name in _XARGS_OF_ENGINE:
        if isinstance(xargs, dict) and name in xargs:
            message = f"`{_XARGS}.{name}` is not for clients: leave it out."
            raise invalid(message, f"{_XARGS}.{name}")


def _contract(request: Request) -> str:
    """The first that asks for something."""
    members = request.members
    for name in members:
        if name in CONTRACT and not _is_idle(members[name], CONTRACT[name]):
            return name
    if request.path == CHAT and not _is_idle(members.get(_ECHO), False):
        return _ECHO
    options = members.get(_OPTIONS)
    if isinstance(options, dict) and _CONTINUOUS in options:
        return f"{_OPTIONS}.{_CONTINUOUS}"
    return ""


def _is_idle(value: object, idle: object) -> bool:
    """A 0 is no false here."""
    return value is None or (type(value) is type(idle) and value == idle)


def _cuts(
    body: bytes, mine: Collection[str], others: Collection[str]
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Of two sets of names: what to cut so that no member of the set is left, and what is left is
    an object still. The model, which is in neither, stays."""
    plain = without_quote_escapes(body)
    found: list[tuple[str, int, int]] = []
    seen = set[str]()
    for raw_key, start, _, end in members_at(body, plain, plain.index(b"{") + 1):
        key = raw_key.decode()
        if key in mine or key in others:
            if key in seen:
                raise invalid(f"`{key}` is in the body twice: send it once.", key)
            seen.add(key)
        found.append((key, start, end))
    return _spans(found, mine), _spans(found, others)


def _spans(found: list[tuple[str, int, int]], names: Collection[str]) -> tuple[Span, ...]:
    """Before the first that stays a member goes with the comma behind it, later with the one
    before it."""
    spans: list[Span] = []
    kept = False
    for index, (key, start, end) in enumerate(found):
        if key not in names:
            kept = True
            continue
        span = (found[index - 1][2], end) if kept else (start, found[index + 1][1])
        if spans and spans[-1][1] == span[0]:
            span = (spans.pop()[0], span[1])
        spans.append(span)
    return tuple(spans)
