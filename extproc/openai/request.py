"""What a request of the OpenAI API asks for, and what can be spliced into its body.

It reads a body once and never writes it anew: a change
is a splice at a byte span, so whatever the client wrote elsewhere (integers of any size, escapes,
whitespace, the order of keys) reaches the server as it was. No message made here quotes the body:
prompts must not leak into answers or logs.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from extproc.openai.paths import CHAT, COMPLETIONS, EMBEDDINGS, MODELS
from extproc.openai.prompts import MAX_PROMPTS, chat_prompt, completion_prompt, embedding_input
from extproc.openai.replies import ApiError, invalid
from extproc.openai.spans import (
    READ_OF_EMBEDDINGS,
    READ_OF_REQUEST,
    READ_OF_STREAM_OPTIONS,
    Span,
    quick_spans,
    value_spans,
    without_quote_escapes,
)

__all__ = [
    "MAX_MARKS",
    "MAX_PROMPTS",
    "Request",
    "abort_ids",
    "parse",
    "with_changes",
]

MAX_MODEL_CHARS = 256
MAX_CHOICES = 128
# What bounds the time that one body can take from all others: text of several megabytes stays
# below it, a hostile body of brackets and commas does not.
MAX_MARKS = 400_000
COMPLETIONS_DEFAULT_TOKENS = 16  # of each answer that names no max_tokens, by the API

_ENCODINGS = ("float", "base64")


@dataclass(slots=True)  # frozen would cost more than the fields
class Request:
    """What Forebay reads of a request. Spans are byte offsets in the body that was parsed."""

    path: str  # CHAT, COMPLETIONS or EMBEDDINGS
    model: str
    model_span: Span  # of the string token of the top-level "model", quotes included
    stream: bool
    usage_asked: bool  # stream_options.include_usage is true
    last_user_text: str = field(repr=False)  # chat: of the last user message; else the prompts
    prompt_tokens_estimate: int  # see extproc.openai.prompts; never below 1
    max_tokens: int | None  # None: the server's default (for completions that is 16); 0: vectors
    min_tokens: int  # vLLM's; 0: none
    choices: int  # n
    temperature: float | None  # None: the server's default
    prompt_count: int  # of a list of prompts or inputs: how many; else 1
    size_bytes: int  # of the body
    # orjson's view of the whole body. See forget_prompt and lower_limit.
    members: dict[str, Any] = field(repr=False)
    # For with_changes alone. Start, end, what to put there; None: nothing to do.
    usage_splice: tuple[int, int, bytes] | None = field(repr=False)
    # Start, end, and what goes before the number.
    limit_place: tuple[int, int, bytes] = field(repr=False)
    asked_tokens: int | None = None  # max_tokens as the client wants it
    lowered_to: int | None = None  # what the server is to get instead; see lower_limit

    @property
    def sequences(self) -> int:
        """What it makes in a server: each choice of each prompt."""
        return self.choices * self.prompt_count

    def may_have_more_than(self, tokens: int) -> bool:
        """Whether an answer may be longer than that."""
        tokens = max(tokens, self.min_tokens)
        if self.max_tokens is None:
            return self.path == CHAT or tokens < COMPLETIONS_DEFAULT_TOKENS
        return self.max_tokens > tokens

    def lower_limit(self, tokens: int) -> None:
        """From now on it is a request for so many tokens of each choice, or `min_tokens` if that is
        more. What was read of it says so too (`max_tokens`, `members`); its body does not yet."""
        self.max_tokens = self.lowered_to = max(tokens, self.min_tokens)
        if self.members:
            self.members[_limit_name(self.path, self.members)] = self.max_tokens

    def forget_prompt(self) -> None:
        """Let go of what is as long as a prompt: a request lives as long as its answer."""
        self.last_user_text = ""
        self.members = {}


def abort_ids(request: Request, request_id: str) -> list[str]:
    """The ids under which vLLM can end a request that reached it with this X-Request-Id."""
    if request.path == CHAT:
        return [f"chatcmpl-{request_id}"]
    if request.path == EMBEDDINGS:
        return []  # half of a vector is of no use
    return [f"cmpl-{request_id}-{index}" for index in range(request.prompt_count)]


def parse(path: str, body: bytes) -> Request:
    """Read a request, or raise ApiError: 404 for another path, 400 for a body that breaks a rule.

    Only what Forebay itself relies on is checked; every other member is the server's to judge.
    Of the members Forebay reads none may appear twice, since servers differ in which one counts.
    """
    if path not in (CHAT, COMPLETIONS, EMBEDDINGS):
        raise no_such_path()
    members = _load_object(body)
    if path == EMBEDDINGS:
        return _embeddings(members, body)
    plain = b""
    spans = quick_spans(body, members)
    if spans is None:
        plain = without_quote_escapes(body)
        spans = value_spans(body, plain, plain.index(b"{") + 1, READ_OF_REQUEST)

    model = _model(members)
    if path == CHAT:
        last_user_text, tokens = chat_prompt(members, spans)
        prompt_count = 1
    else:
        last_user_text, tokens, prompt_count = completion_prompt(members)
    stream = "stream" in members and _flag(members, "stream")
    usage_asked, usage_splice = _usage(members, body, plain, spans)
    max_tokens, limit_place = _max_tokens(path, members, spans)
    return Request(
        path=path,
        model=model,
        model_span=spans["model"],
        stream=stream,
        usage_asked=usage_asked,
        last_user_text=last_user_text,
        prompt_tokens_estimate=max(1, tokens),
        max_tokens=max_tokens,
        min_tokens=_min_tokens(members) if "min_tokens" in members else 0,
        choices=_choices(members) if "n" in members else 1,
        temperature=_temperature(members) if "temperature" in members else None,
        prompt_count=prompt_count,
        size_bytes=len(body),
        members=members,
        usage_splice=usage_splice if stream and not usage_asked else None,
        limit_place=limit_place,
        asked_tokens=max_tokens,
    )


def _embeddings(members: dict[str, Any], body: bytes) -> Request:
    """One sequence for each input, none of which makes a token. Whether a stream may be asked for
    is the server's to judge: its answer is JSON, and counted as such."""
    plain = without_quote_escapes(body)
    spans = value_spans(body, plain, plain.index(b"{") + 1, READ_OF_EMBEDDINGS)
    model = _model(members)
    text, tokens, count = embedding_input(members)
    if members.get("encoding_format") not in (None, *_ENCODINGS):
        # In vLLM's others the usage is not where it is counted.
        raise invalid(
            f"`encoding_format` must be one of {', '.join(_ENCODINGS)}.", "encoding_format"
        )
    after_model = spans["model"][1]
    return Request(
        path=EMBEDDINGS,
        model=model,
        model_span=spans["model"],
        stream=False,
        usage_asked=False,
        last_user_text=text,
        prompt_tokens_estimate=max(1, tokens),
        max_tokens=0,
        min_tokens=0,
        choices=1,
        temperature=None,
        prompt_count=count,
        size_bytes=len(body),
        members=members,
        usage_splice=None,
        limit_place=(after_model, after_model, b""),
    )


def no_such_path() -> ApiError:
    message = f"No such path: POST to {CHAT}, {COMPLETIONS} or {EMBEDDINGS}, or GET {MODELS}."
    return ApiError(404, message, "invalid_request_error", "unknown_url")


def with_changes(
    body: bytes, request: Request, *, most_tokens: int | None = None
) -> tuple[bytes, Span]:
    """The body as the server is to get it, and where its model then stands: a stream that does not
    ask for its usage does, and no choice may have more than `most_tokens`, if given.

    `request` is what parse made of this very body. Each change is one splice: every other byte
    stays. Where there is none to make, the body comes back as it is.
    """
    splices = splices_of(request, most_tokens)
    if not splices:
        return body, request.model_span
    model_start, model_end = request.model_span
    for start, end, new in sorted(splices, reverse=True):
        body = body[:start] + new + body[end:]
        if start < model_start:
            shift = len(new) - (end - start)
            model_start, model_end = model_start + shift, model_end + shift
    return body, (model_start, model_end)


def splices_of(request: Request, most_tokens: int | None) -> list[tuple[int, int, bytes]]:
    """What with_changes puts where: start, end, and the new bytes. None overlap."""
    splices = [request.usage_splice] if request.usage_splice else []
    if most_tokens is not None:
        start, end, name = request.limit_place
        splices.append((start, end, b"%b%d" % (name, most_tokens)))
    return splices


# Rules


def _load_object(body: bytes) -> dict[str, Any]:
    """orjson's view of the body. Strict: no BOM, NaN, lone surrogate or invalid UTF-8, at most
    1024 levels, and no number beyond a double. An integer beyond 64 bits becomes a float here;
    in the body its digits stay."""
    if not body:
        raise invalid("The body is empty: send a JSON object.")
    if len(body) > MAX_MARKS and sum(map(body.count, (b",", b"[", b"{"))) > MAX_MARKS:
        raise invalid(f"The body has more than {MAX_MARKS} commas and brackets: send less.")
    try:
        loaded = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # Without a document (invalid UTF-8) orjson knows no position.
        where = f" at line {error.lineno}, column {error.colno}" if error.doc else ""
        problem = f"The body is not valid JSON{where}: {error.msg}. Send one JSON object in UTF-8."
    else:
        if isinstance(loaded, dict):
            return cast("dict[str, Any]", loaded)
        problem = "The body must be a JSON object, not another JSON value."
    raise invalid(problem)  # outside of the handler: the decode error holds the whole body


def _model(members: dict[str, Any]) -> str:
    model = members.get("model")
    if not isinstance(model, str) or not model:
        raise invalid(
            f"Set `model` to the name of a model: a non-empty string, see GET {MODELS}.", "model"
        )
    if len(model) > MAX_MODEL_CHARS:
        raise invalid(f"`model` must have at most {MAX_MODEL_CHARS} characters.", "model")
    return model


def _flag(members: dict[str, Any], name: str) -> bool:
    value = members.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"`{name}` must be true or false.", name)
    return value is True


def _max_tokens(
    path: str, members: dict[str, Any], spans: dict[str, Span]
) -> tuple[int | None, tuple[int, int, bytes]]:
    """The limit that counts, and where it stands or could stand. Chat has two members for it, of
    which the newer one counts; completions has one."""
    for name in ("max_completion_tokens", "max_tokens"):
        if name in members:
            value = members[name]
            if value is not None and (type(value) is not int or value < 1):
                raise invalid(f"`{name}` must be a positive integer.", name)
    name = _limit_name(path, members)
    if name in spans:
        return members[name], (*spans[name], b"")
    after_model = spans["model"][1]
    return None, (after_model, after_model, b',"max_tokens":')


def _limit_name(path: str, members: dict[str, Any]) -> str:
    newer = "max_completion_tokens"
    return newer if path == CHAT and members.get(newer) is not None else "max_tokens"


def _min_tokens(members: dict[str, Any]) -> int:
    """Whatever else stands there is the server's to judge."""
    value = members.get("min_tokens")
    return value if type(value) is int and value > 0 else 0


def _choices(members: dict[str, Any]) -> int:
    n = members.get("n")
    if n is None:
        return 1
    if type(n) is not int or not 1 <= n <= MAX_CHOICES:
        raise invalid(f"`n` must be an integer from 1 to {MAX_CHOICES}.", "n")
    return n


def _temperature(members: dict[str, Any]) -> float | None:
    value = members.get("temperature")
    if value is not None and type(value) not in (int, float):
        raise invalid("`temperature` must be a number.", "temperature")
    return value


def _usage(
    members: dict[str, Any], body: bytes, plain: bytes, spans: dict[str, Span]
) -> tuple[bool, tuple[int, int, bytes]]:
    """Whether the client asked for usage, and the splice that would ask for it.

    stream_options without stream is left to the server.
    """
    if "stream_options" not in members:
        after_model = spans["model"][1]
        return False, (after_model, after_model, b',"stream_options":{"include_usage":true}')
    start, end = spans["stream_options"]
    options = members["stream_options"]
    if options is None:
        return False, (start, end, b'{"include_usage":true}')
    if not isinstance(options, dict):
        raise invalid("`stream_options` must be an object or null.", "stream_options")
    options = cast("dict[str, object]", options)
    inner = value_spans(body, plain, start + 1, READ_OF_STREAM_OPTIONS, "stream_options.")
    if "include_usage" not in options:
        comma = b"," if options else b""
        return False, (start + 1, start + 1, b'"include_usage":true' + comma)
    asked = options["include_usage"]
    if asked is not None and not isinstance(asked, bool):
        raise invalid(
            "`stream_options.include_usage` must be true or false.", "stream_options.include_usage"
        )
    return asked is True, (*inner["include_usage"], b"true")
