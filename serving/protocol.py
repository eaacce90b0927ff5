"""Reads the JSON of a completion request and checks it as vLLM does.

Pure: bytes in, an `Ask` or an `ApiError` out. Must never know connections or the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from serving.engine import block_hashes
from serving.engine.prefix import CHARACTERS_PER_TOKEN
from serving.settings import SimSettings

_MAX_CHOICES = 128
_ROLE_CHARACTERS = 4 * CHARACTERS_PER_TOKEN


class ApiError(Exception):
    """An answer in vLLM's error shape."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, param)


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """{"error": {message, type, param, code}}; the type is the status' name, like NotFoundError."""
    name = "".join(word.capitalize() for word in HTTPStatus(status).phrase.split())
    kind = name if name.endswith("Error") else f"{name}Error"
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request: its length, the hashes of its full KV blocks, and how long its
    answer gets and why it ends there."""

    tokens: int
    block_hashes: Sequence[int]
    max_tokens: int
    end_reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What a valid request asks for. A chat has one prompt; each prompt gets `n` choices."""

    chat: bool
    prompts: tuple[Prompt, ...]
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool


def parse(body: bytes, *, chat: bool, settings: SimSettings) -> Ask:
    """Check a body of /v1/chat/completions (`chat`) or /v1/completions.

    Members that are not named below are accepted and have no effect, as is `ignore_eos`:
    an answer with max_tokens always gets that long. Raises ApiError with 400 or 404.
    """
    asked = _asked(body, settings)
    for name in ("temperature", "top_p"):
        _member(asked, name, (int, float))
    n = _count(asked, "n") or 1
    if n > _MAX_CHOICES:
        raise ApiError(400, f"n must be at most {_MAX_CHOICES}, got {n}.", "n")
    stream = _member(asked, "stream", bool) or False
    options = _member(asked, "stream_options", dict)
    if options is not None and not stream:
        message = "Stream options can only be defined when `stream=True`."
        raise ApiError(400, message, "stream_options")
    include_usage = _member(options or {}, "include_usage", bool) or False
    continuous = _member(options or {}, "continuous_usage_stats", bool) or False
    contents = [_chat_content(asked)] if chat else _contents(asked, "prompt")
    max_tokens = _count(asked, "max_completion_tokens") if chat else None
    max_tokens = max_tokens or _count(asked, "max_tokens")
    min_tokens = _member(asked, "min_tokens", int) or 0
    salt = _member(asked, "cache_salt", str)
    return Ask(
        chat=chat,
        prompts=tuple(
            _prompt(content, salt, max_tokens, min_tokens, settings) for content in contents
        ),
        n=n,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and continuous,
    )


@dataclass(frozen=True, slots=True)
class EmbeddingsAsk:
    """What a valid request for vectors asks for: each content gets one."""

    contents: "tuple[_Content, ...]"
    ask: Ask
    """The same as sequences of the engine."""
    base64: bool


def parse_embeddings(body: bytes, settings: SimSettings) -> EmbeddingsAsk:
    """Check a body of /v1/embeddings. Raises ApiError with 400 or 404."""
    asked = _asked(body, settings)
    encoding = _member(asked, "encoding_format", str) or "float"
    if encoding not in ("float", "base64"):
        raise ApiError(400, "encoding_format: want float or base64.", "encoding_format")
    contents = _contents(asked, "input")
    # The end of a prompt's last step is the end of its sequence.
    prompts = tuple(_prompt(content, None, 1, 0, settings) for content in contents)
    ask = Ask(False, prompts, n=1, stream=False, include_usage=False, continuous_usage=False)
    return EmbeddingsAsk(tuple(contents), ask, encoding == "base64")


def _asked(body: bytes, settings: SimSettings) -> dict[str, Any]:
    """The JSON of any request, for a model that is served."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from None
    if not isinstance(asked, dict):
        raise ApiError(400, "The body must be a JSON object.")
    model = _member(asked, "model", str)
    if model is not None and model not in settings.models:
        raise ApiError(404, f"The model `{model}` does not exist.", "model")
    return asked


_Content = str | list[int]
"""A prompt as the engine knows it: text of exactly four characters per token, or token ids."""


def _prompt(
    content: _Content,
    salt: str | None,
    max_tokens: int | None,
    min_tokens: int,
    settings: SimSettings,
) -> Prompt:
    """Fix the length of the answers to a prompt, then hash it."""
    tokens = len(content) // CHARACTERS_PER_TOKEN if isinstance(content, str) else len(content)
    limit = settings.max_model_len
    if tokens + (max_tokens or 1) > limit:
        message = (
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{max_tokens or 1} output tokens and your prompt contains {tokens} input tokens. "
            "Please reduce the length of the prompt or the number of requested output tokens."
        )
        raise ApiError(400, message, "max_tokens" if tokens < limit else "input_tokens")
    if max_tokens is not None:
        if min_tokens > max_tokens:
            message = f"min_tokens must be at most max_tokens={max_tokens}, got {min_tokens}."
            raise ApiError(400, message, "min_tokens")
        length, end_reason = max_tokens, "length"
    else:
        natural = max(settings.default_max_tokens, min_tokens)
        length = min(natural, limit - tokens)
        end_reason = "stop" if length == natural else "length"
    return Prompt(tokens, block_hashes(content, settings.block_size, salt), length, end_reason)


def _text_content(text: str) -> str:
    """Filled up to whole tokens. The estimate used everywhere here: one token for each four
    characters, rounded up."""
    return text.ljust(-(-len(text) // CHARACTERS_PER_TOKEN) * CHARACTERS_PER_TOKEN, "\0")


def _chat_content(asked: dict[str, Any]) -> str:
    """The text of all messages, and 4 tokens with its role for each; parts that are not text
    count nothing."""
    messages = _member(asked, "messages", list)
    if not messages:
        raise ApiError(400, "messages: want a list of at least one message.", "messages")
    pieces: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "messages: each must be an object with a role.", "messages")
        pieces.append(f"{message['role']:\0<{_ROLE_CHARACTERS}.{_ROLE_CHARACTERS}}")
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        for part in parts:
            text = part.get("text", "") if isinstance(part, dict) else None
            if not isinstance(text, str):
                message = "messages: content must be a string or a list of parts."
                raise ApiError(400, message, "messages")
            pieces.append(_text_content(text))
    return "".join(pieces)


def _contents(asked: dict[str, Any], name: str) -> list[_Content]:
    """Each prompt or input: a text, a list of token ids, or a list of either."""
    prompt = asked.get(name)
    is_one = isinstance(prompt, str) or (
        isinstance(prompt, list) and all(type(item) is int for item in prompt)
    )
    prompts: list[Any] = [prompt] if is_one else prompt if isinstance(prompt, list) else []
    contents: list[_Content] = []
    for one in prompts:
        if isinstance(one, str):
            contents.append(_text_content(one))
        elif isinstance(one, list) and all(type(item) is int for item in one):
            contents.append(one)
        else:
            raise ApiError(400, f"{name}: want text, token ids, or a list of either.", name)
    if not contents or not all(contents):
        raise ApiError(400, f"{name}: want at least one {name}, none of them empty.", name)
    return contents


def _member(asked: dict[str, Any], name: str, kind: Any) -> Any:
    """A member of this JSON type, or None if absent or null. A bool is no number."""
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise ApiError(400, f"{name}: {value!r:.100} has the wrong type.", name)


def _count(asked: dict[str, Any], name: str) -> int | None:
    """A whole number of at least 1, or None."""
    value = _member(asked, name, int)
    if value is not None and value < 1:
        raise ApiError(400, f"{name} must be at least 1, got {value}.", name)
    return value
