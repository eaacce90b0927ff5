"""What Forebay itself answers, in OpenAI's shape: errors and the list of models."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import orjson

from extproc.openai.paths import CHAT
from extproc.openai.sse import stream_of, whole_events


class ApiError(Exception):
    """An answer other than the one asked for, as the client is told it, in OpenAI's shape."""

    def __init__(
        self, status: int, message: str, type: str, code: str, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param

    def body(self) -> bytes:
        return error_body(self.message, self.type, self.code, self.param)


def invalid(message: str, param: str | None = None) -> ApiError:
    """400: the request breaks a rule."""
    return ApiError(400, message, "invalid_request_error", "invalid_request", param)


def error_body(message: str, type: str, code: str, param: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


def error_message(body: bytes) -> str:
    """Of a body that error_body has made."""
    return orjson.loads(body)["error"]["message"]


def models_body(names: Sequence[str], created: int) -> bytes:
    """The answer to GET /v1/models; `created` in seconds since the epoch."""
    data = [
        {"id": name, "object": "model", "created": created, "owned_by": "forebay"} for name in names
    ]
    return orjson.dumps({"object": "list", "data": data})


def partial_ending(
    path: str,
    *,
    first_chunk: bytes,
    request_id: str,
    model: str,
    reason: str,
    choices: Sequence[int],
    tokens_estimate: int | None,
) -> bytes:
    """The events that end a stream before its time: a last chunk for these choices, with
    `finish_reason: "length"` and a `forebay` member that says it is incomplete and why, usage if
    `tokens_estimate` is given, [DONE].

    Id, time and model are those of `first_chunk` (JSON), as far as it has them; else made of
    `request_id` and `model`. The usage knows no prompt tokens: only the server counts those.
    """
    chat = path == CHAT
    head: dict[str, Any] = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": int(time.time()),
        "model": model,
    }
    head |= {name: value for name, value in _object(first_chunk).items() if name in head}
    incomplete: dict[str, Any] = {"incomplete": True, "reason": reason}
    part: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    ends: list[dict[str, Any]] = [
        {"index": index, **part, "logprobs": None, "finish_reason": "length"} for index in choices
    ]
    chunks: list[dict[str, Any]] = []
    if ends:
        chunks.append({**head, "choices": ends, "forebay": incomplete})
    if tokens_estimate is not None:
        usage = {
            "prompt_tokens": 0,
            "completion_tokens": tokens_estimate,
            "total_tokens": tokens_estimate,
        }
        estimated = {**(incomplete if ends else {}), "usage_estimated": True}
        chunks.append({**head, "choices": [], "usage": usage, "forebay": estimated})
    return stream_of(chunks)


def ended_choices(events: bytes) -> set[int]:
    """The choices that have their finish reason in these whole events of a stream."""
    ended: set[int] = set()
    for _, event in whole_events(events):
        choices = _object(event).get("choices")
        for choice in cast("list[object]", choices) if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                members = cast("dict[str, object]", choice)
                index = members.get("index")
                if isinstance(members.get("finish_reason"), str) and isinstance(index, int):
                    ended.add(index)
    return ended


def before_error(events: bytes) -> bytes | None:
    """What stands before the first error event (`data: {"error": ...}`) in these whole events of a
    stream; None if there is none. Text that speaks of an "error" is none."""
    for start, event in whole_events(events):
        if b'"error"' in event and _object(event).get("error"):
            return events[:start]
    return None


class Usage(NamedTuple):
    """As a server counted it; None: it did not say."""

    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


def last_usage(events: bytes) -> Usage | None:
    """The last usage in these whole events of a stream."""
    last: Usage | None = None
    for _, event in whole_events(events):
        if usage := _members(_object(event).get("usage")):
            details = _members(usage.get("prompt_tokens_details"))
            last = Usage(
                _count(usage.get("prompt_tokens")),
                _count(details.get("cached_tokens")),
                _count(usage.get("completion_tokens")),
            )
    return last


def _members(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _object(text: bytes) -> dict[str, Any]:
    try:
        loaded = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
