"""What a request of the OpenAI API asks for, and what can be spliced into its body.

It reads a body once and never writes it anew: a change
is a splice at a byte span, so whatever the client wrote elsewhere (integers of any size, escapes,
whitespace, the order of keys) reaches the server as it was. No message made here quotes the body:
prompts must not leak into answers or logs.
"""

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, cast

import orjson

from extproc.openai.paths import CHAT, COMPLETIONS, MODELS
from extproc.openai.replies import ApiError

MAX_MODEL_CHARS = 256
MAX_CHOICES = 128
MAX_PROMPTS = 128
# What bounds the time that one body can take from all others: text of several megabytes stays
# below it, a hostile body of brackets and commas does not.
MAX_MARKS = 400_000
COMPLETIONS_DEFAULT_TOKENS = 16  # of each answer that names no max_tokens, by the API
MAX_MEMBERS = 1_000  # of the body, and of stream_options
MAX_ITEMS = 20_000  # messages, and in all of them: parts of contents, calls of tools

# The estimate of prompt tokens: no tokenizer, right within some tens of percent.
BYTES_PER_TOKEN = 4  # of UTF-8; about right for English and code, and for CJK at 3 bytes a sign
TOKENS_PER_MESSAGE = 4  # what a chat template puts around a message
TOKENS_PER_MEDIA_PART = 765  # one image of 1024x1024 at OpenAI's high detail; audio, files alike

Span: TypeAlias = tuple[int, int]  # byte offsets, the end exclusive


@dataclass(slots=True)  # frozen would cost more than the fields
class Request:
    """What Forebay reads of a request. Spans are byte offsets in the body that was parsed."""

    path: str  # CHAT or COMPLETIONS
    model: str
    model_span: Span  # of the string token of the top-level "model", quotes included
    stream: bool
    usage_asked: bool  # stream_options.include_usage is true
    last_user_text: str = field(repr=False)  # chat: of the last user message; else the prompts
    prompt_tokens_estimate: int  # see _chat_prompt and _completion_prompt; never below 1
    max_tokens: int | None  # None: the server's default
    min_tokens: int  # vLLM's; 0: none
    choices: int  # n
    temperature: float | None  # None: the server's default
    prompt_count: int  # completions with a list of prompts: how many; else 1
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
    """The ids under which vLLM runs a request that reached it with this X-Request-Id."""
    if request.path == CHAT:
        return [f"chatcmpl-{request_id}"]
    return [f"cmpl-{request_id}-{index}" for index in range(request.prompt_count)]


def parse(path: str, body: bytes) -> Request:
    """Read a request, or raise ApiError: 404 for another path, 400 for a body that breaks a rule.

    Only what Forebay itself relies on is checked; every other member is the server's to judge.
    Of the members Forebay reads none may appear twice, since servers differ in which one counts.
    """
    if path not in (CHAT, COMPLETIONS):
        message = f"No such path: POST to {CHAT} or {COMPLETIONS}, or GET {MODELS}."
        raise ApiError(404, message, "invalid_request_error", "unknown_url")
    members = _load_object(body)
    plain = b""
    spans = _quick_spans(body, members)
    if spans is None:
        plain = _without_quote_escapes(body)
        spans = _value_spans(body, plain, plain.index(b"{") + 1, _READ)

    model = _model(members)
    if path == CHAT:
        last_user_text, tokens = _chat_prompt(members, spans)
        prompt_count = 1
    else:
        last_user_text, tokens, prompt_count = _completion_prompt(members)
    stream = _flag(members, "stream")
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
        min_tokens=_min_tokens(members),
        choices=_choices(members),
        temperature=_temperature(members),
        prompt_count=prompt_count,
        members=members,
        usage_splice=usage_splice if stream and not usage_asked else None,
        limit_place=limit_place,
        asked_tokens=max_tokens,
    )


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


def _refuse(message: str, param: str | None = None) -> NoReturn:
    raise ApiError(400, message, "invalid_request_error", "invalid_request", param)


def _load_object(body: bytes) -> dict[str, Any]:
    """orjson's view of the body. Strict: no BOM, NaN, lone surrogate or invalid UTF-8, at most
    1024 levels, and no number beyond a double. An integer beyond 64 bits becomes a float here;
    in the body its digits stay."""
    if not body:
        _refuse("The body is empty: send a JSON object.")
    if len(body) > MAX_MARKS and sum(map(body.count, (b",", b"[", b"{"))) > MAX_MARKS:
        _refuse(f"The body has more than {MAX_MARKS} commas and brackets: send less.")
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
    _refuse(problem)  # outside of the handler: the decode error holds the whole body


def _model(members: dict[str, Any]) -> str:
    model = members.get("model")
    if not isinstance(model, str) or not model:
        _refuse(
            f"Set `model` to the name of a model: a non-empty string, see GET {MODELS}.", "model"
        )
    if len(model) > MAX_MODEL_CHARS:
        _refuse(f"`model` must have at most {MAX_MODEL_CHARS} characters.", "model")
    return model


def _chat_prompt(members: dict[str, Any], spans: dict[str, Span]) -> tuple[str, int]:
    """The text of the last user message, and an estimate of the tokens of the whole prompt:
    the UTF-8 bytes of all text (contents, names, tool calls, the tools' JSON) / 4, rounded up,
    and a constant for each message and each part that is not text."""
    messages = members.get("messages")
    if not isinstance(messages, list) or not messages:
        _refuse("Set `messages` to a list of at least one message.", "messages")
    messages = cast("list[object]", messages)
    last_user: object = None
    size = media = 0
    items = len(messages)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            _refuse("Each of `messages` must be an object.", f"messages[{index}]")
        message = cast("dict[str, object]", message)
        items += _length(message.get("content")) + _length(message.get("tool_calls"))
        if items > MAX_ITEMS:
            _refuse(f"`messages` holds more than {MAX_ITEMS} items: send fewer.", "messages")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            _refuse("Each of `messages` needs a `role`, such as `user`.", f"messages[{index}].role")
        if isinstance(content, str):
            size += _utf8_size(content)
        elif content is not None:
            parts_size, parts_media = _check_parts(content, f"messages[{index}].content")
            size += parts_size
            media += parts_media
        if len(message) > 2 or content is None:
            size += _extras_size(message)
        if role == "user":
            last_user = content
    if members.get("tools") is not None:
        start, end = spans["tools"]
        size += end - start
    tokens = _ceil_tokens(size) + TOKENS_PER_MESSAGE * len(messages) + TOKENS_PER_MEDIA_PART * media
    return _content_text(last_user), tokens


def _length(value: object) -> int:
    return len(cast("list[object]", value)) if isinstance(value, list) else 0


def _check_parts(content: object, where: str) -> tuple[int, int]:
    """Of a content that is neither a string nor null: the UTF-8 bytes of its text, and how many
    of its parts are not text."""
    if not isinstance(content, list):
        _refuse("A message's `content` must be a string, a list of parts, or null.", where)
    size = media = 0
    for part in cast("list[object]", content):
        if not isinstance(part, dict | str):
            _refuse('Each part of a content must be an object with a "type".', where)
        text = _part_text(cast("dict[str, object] | str", part))
        if text is None:
            media += 1
        else:
            size += _utf8_size(text)
    return size, media


def _part_text(part: dict[str, object] | str) -> str | None:
    """The text of one part of a content list (vLLM takes bare strings too); None: it has none."""
    if isinstance(part, str):
        return part
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else None


def _content_text(content: object) -> str:
    """The text of a content that was checked."""
    if isinstance(content, list):
        parts = cast("list[dict[str, object] | str]", content)
        return "\n".join(text for part in parts if (text := _part_text(part)) is not None)
    return content if isinstance(content, str) else ""


def _extras_size(message: dict[str, object]) -> int:
    """UTF-8 bytes of what a message says beside its content: a name, the calls of tools."""
    size = 0
    name = message.get("name")
    if isinstance(name, str):
        size += _utf8_size(name)
    calls = message.get("tool_calls")
    for call in cast("list[object]", calls) if isinstance(calls, list) else ():
        if isinstance(call, dict):
            function = cast("dict[str, object]", call).get("function")
            if isinstance(function, dict):
                values = cast("dict[str, object]", function).values()
                size += sum(_utf8_size(value) for value in values if isinstance(value, str))
    return size


def _completion_prompt(members: dict[str, Any]) -> tuple[str, int, int]:
    """The text, an estimate of the tokens (of text its UTF-8 bytes / 4, rounded up for each
    prompt; of token ids their number) and the number of prompts."""
    prompt = members.get("prompt")
    if isinstance(prompt, str):
        return prompt, _ceil_tokens(_utf8_size(prompt)), 1
    if isinstance(prompt, list) and prompt:
        kinds = set(map(type, cast("list[object]", prompt)))  # exact types: a bool is no token id
        if kinds != {int} and len(cast("list[object]", prompt)) > MAX_PROMPTS:
            _refuse(
                f"`prompt` may hold at most {MAX_PROMPTS} prompts: send several requests.",
                "prompt",
            )
        if kinds == {str}:
            texts = cast("list[str]", prompt)
            tokens = sum(_ceil_tokens(_utf8_size(text)) for text in texts)
            return "\n".join(texts), tokens, len(texts)
        if kinds == {int}:
            return "", len(cast("list[int]", prompt)), 1
        if kinds == {list}:
            lists = cast("list[list[object]]", prompt)
            if all(set(map(type, ids)) == {int} for ids in lists):
                return "", sum(map(len, lists)), len(lists)
    _refuse(
        "Set `prompt` to a string, or to a non-empty list of strings, of token ids,"
        " or of non-empty lists of token ids.",
        "prompt",
    )


def _ceil_tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _flag(members: dict[str, Any], name: str) -> bool:
    value = members.get(name)
    if value is not None and not isinstance(value, bool):
        _refuse(f"`{name}` must be true or false.", name)
    return value is True


def _max_tokens(
    path: str, members: dict[str, Any], spans: dict[str, Span]
) -> tuple[int | None, tuple[int, int, bytes]]:
    """The limit that counts, and where it stands or could stand. Chat has two members for it, of
    which the newer one counts; completions has one."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = members.get(name)
        if value is not None and (type(value) is not int or value < 1):
            _refuse(f"`{name}` must be a positive integer.", name)
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
        _refuse(f"`n` must be an integer from 1 to {MAX_CHOICES}.", "n")
    return n


def _temperature(members: dict[str, Any]) -> float | None:
    value = members.get("temperature")
    if value is not None and type(value) not in (int, float):
        _refuse("`temperature` must be a number.", "temperature")
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
        _refuse("`stream_options` must be an object or null.", "stream_options")
    options = cast("dict[str, object]", options)
    inner = _value_spans(body, plain, start + 1, _READ_OF_STREAM_OPTIONS, "stream_options.")
    if "include_usage" not in options:
        comma = b"," if options else b""
        return False, (start + 1, start + 1, b'"include_usage":true' + comma)
    asked = options["include_usage"]
    if asked is not None and not isinstance(asked, bool):
        _refuse(
            "`stream_options.include_usage` must be true or false.", "stream_options.include_usage"
        )
    return asked is True, (*inner["include_usage"], b"true")


# Spans. orjson has accepted the body by now, so these patterns meet valid JSON only.


def _by_key(*names: str) -> dict[bytes, str]:
    return {name.encode(): name for name in names}


_READ = _by_key(
    "model",
    "messages",
    "prompt",
    "tools",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
)
_READ_OF_STREAM_OPTIONS = _by_key("include_usage")

# Patterns see the body after _without_quote_escapes, where a string ends at the next quote. All
# repeats are possessive or atomic: the engine never goes back, so time is linear in the bytes.
_STRING = rb'"[^"]*+"'


def _container_pattern(levels: int) -> bytes:
    """A pattern for an array or object that nests at most so deep. Brackets pair up in valid JSON,
    so it need not tell the two kinds apart."""
    between = rb'[^"\[\]{}]*+'
    item, container = _STRING, b""
    for _ in range(levels):
        container = rb"[\[{]%b(?>(?:(?:%b)%b)*)[\]}]" % (between, item, between)
        item = _STRING + b"|" + container
    return container


# Key and value of the next member. A container deeper than the pattern knows matches by its
# opening bracket alone. Tools with JSON schemas go some 8 levels deep.
_MEMBER = re.compile(
    rb'[\s,]*+"([^"]*+)"\s*+:\s*+(%b|%b|[\[{]|[^\s,"\[\]{}]++)' % (_STRING, _container_pattern(12))
)
# For _quick_spans: a value without brackets or escapes, and what it looks for.
_SCALAR = re.compile(rb'\s*+:\s*+("[^"\\]*+"|[^\s,"\[\]{}]++)')
_QUICK_BYTES = 64 * 1024
_CONTAINERS = frozenset(("tools", "stream_options"))
_QUOTED = {b'"%b"' % key: name for key, name in _READ.items() if name not in _CONTAINERS}
_SPANS_NEEDED = frozenset(("model", "max_tokens", "max_completion_tokens"))
_BRACKET = re.compile(rb"%b|([\[{])|([\]}])" % _STRING)


def _without_quote_escapes(body: bytes) -> bytes:
    """The body, same length, with each escaped backslash and each escaped quote blotted out."""
    if b"\\" not in body:
        return body
    # In a run of backslashes each pair from the left is one escape; an odd one out belongs to the
    # character after the run.
    return body.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")


def _value_spans(
    body: bytes, plain: bytes, at: int, names: dict[bytes, str], prefix: str = ""
) -> dict[str, Span]:
    """Where the values of these members stand in the object whose first member begins at `at`.
    Raises ApiError if one is there twice."""
    spans: dict[str, Span] = {}
    escapes = b"\\" in body
    members = 0
    while (member := _MEMBER.match(plain, at)) is not None:
        start, at = member.span(2)
        if at == start + 1 and plain[start] in b"[{":
            at = _container_end(plain, at)
        members += 1
        if members > MAX_MEMBERS:
            _refuse(f"The body has more than {MAX_MEMBERS} members in one object: send fewer.")
        key = _unescaped(body, member) if escapes else member[1]
        name = names.get(key)
        if name is not None:
            if name in spans:
                _refuse(f"`{prefix}{name}` is in the body twice: send it once.", prefix + name)
            spans[name] = (start, at)
    return spans


def _quick_spans(body: bytes, members: dict[str, Any]) -> dict[str, Span] | None:
    """The spans of `model` and of the limits, as _value_spans finds them, in a third of the time;
    None for a body that is not as most are. `members`: orjson's view of it.

    Without \\u no key hides behind an escape, and inside of a string a quote is escaped: where a
    member is there and its quoted name stands once, there it stands, and not twice.
    """
    if len(body) > _QUICK_BYTES or b"\\u" in body or not _CONTAINERS.isdisjoint(members):
        return None
    spans: dict[str, Span] = {}
    for quoted, name in _QUOTED.items():
        if name not in members:
            continue
        if body.count(quoted) != 1:
            return None
        if name in _SPANS_NEEDED:
            value = _SCALAR.match(body, body.index(quoted) + len(quoted))
            if value is None:
                return None
            spans[name] = value.span(1)
    return spans


def _unescaped(body: bytes, member: re.Match[bytes]) -> bytes:
    """The key of a member as it would be without escapes."""
    key = body[member.start(1) : member.end(1)]
    return orjson.loads(b'"%b"' % key).encode() if b"\\" in key else key


def _container_end(plain: bytes, at: int) -> int:
    """Where the container ends whose opening bracket ends at `at`, however deep it nests."""
    depth = 1
    for token in _BRACKET.finditer(plain, at):
        if token.lastindex == 1:
            depth += 1
        elif token.lastindex == 2:
            depth -= 1
            if depth == 0:
                return token.end()
    raise AssertionError("unbalanced brackets in JSON that orjson accepted")
