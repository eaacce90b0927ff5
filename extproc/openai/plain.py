"""Plain conversations: chats of nothing but text, asked again of another server, not streamed.

What is made here is asked by the gateway itself, never for a client.
"""

from typing import Any, NamedTuple, cast

import orjson

from extproc.openai.members import CONTRACT, HINTS, OURS
from extproc.openai.paths import CHAT
from extproc.openai.request import Request

_ROLES = frozenset(("system", "developer", "user", "assistant"))
# Of the client's members those that are about how it gets its answer, or who it is.
_NOT_OURS = OURS | {"model", "stream", "stream_options", "n", "user", "metadata", "store"}
_LIMITS = ("max_tokens", "max_completion_tokens")


class Said(NamedTuple):
    """What a server answered to a chat, in its first choice."""

    text: str
    cut: bool
    """It ended at its limit of tokens."""
    prompt_tokens: int
    completion_tokens: int


def is_plain(request: Request) -> bool:
    """A chat of text alone, by whomever, that asks for one answer in words."""
    members = request.members
    if request.path != CHAT or request.choices != 1 or not _can_be_written(members):
        return False
    if any(members.get(name) for name in ("tools", "functions", "logprobs", "modalities")):
        return False
    return all(_is_text(message) for message in members["messages"])


def _can_be_written(members: dict[str, Any]) -> bool:
    """What nests too deep can be read, but not written anew."""
    try:
        orjson.dumps(members)
    except orjson.JSONEncodeError:
        return False
    return True


def _is_text(message: dict[str, Any]) -> bool:
    if message["role"] not in _ROLES or message.get("tool_calls"):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(map(_is_text_part, cast("list[dict[str, object] | str]", content)))
    return isinstance(content, str)


def _is_text_part(part: dict[str, object] | str) -> bool:
    if isinstance(part, str):
        return True
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def conversation(members: dict[str, Any]) -> list[tuple[str, str]]:
    """Of a plain request: who says what, in turn."""
    messages = cast("list[dict[str, Any]]", members["messages"])
    return [(message["role"], _text(message["content"])) for message in messages]


def _text(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part if isinstance(part, str) else part["text"] for part in content)


def asked_again(
    members: dict[str, Any],
    model: str,
    most_tokens: int,
    *,
    is_vllm: bool = True,
    priority: int | None = None,
) -> bytes:
    """The body of the same request, not streamed, to a server that calls its model `model`; no
    more than `most_tokens` of answer, and never more than the client asked for. `is_vllm`: it knows
    vLLM's own members. `priority`: one of these, as it is to have it; None: as it likes."""
    gone = _NOT_OURS if is_vllm else _NOT_OURS | HINTS | CONTRACT.keys()
    kept = {name: value for name, value in members.items() if name not in gone}
    given = [kept.pop(name, None) for name in _LIMITS]
    most = min([most_tokens, *(limit for limit in given if limit is not None)])
    # Both names of the limit are understood by vLLM; hosted models want one or the other: the one
    # that the client used.
    name = _LIMITS[1] if given[1] is not None else _LIMITS[0]
    ours = {} if priority is None else {"priority": priority}
    return orjson.dumps({**kept, "model": model, "stream": False, name: most, **ours})


def plain_chat(model: str, messages: list[tuple[str, str]], most_tokens: int) -> bytes:
    """The body of a request that is all ours, without chance."""
    told = [{"role": role, "content": content} for role, content in messages]
    return orjson.dumps(
        {"model": model, "messages": told, "temperature": 0, "max_tokens": most_tokens}
    )


def said(body: bytes) -> Said | None:
    """None: it is no whole answer in words. Members that are not known here are passed over."""
    try:
        members = cast("dict[str, Any]", orjson.loads(body))
        choice = members["choices"][0]
        reason, message, usage = choice["finish_reason"], choice["message"], members["usage"]
        text, tools = message["content"], message.get("tool_calls")
        counts = usage["prompt_tokens"], usage["completion_tokens"]
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None
    if reason not in ("stop", "length") or not isinstance(text, str) or tools:
        return None
    if any(type(count) is not int or count < 0 for count in counts):
        return None
    return Said(text, reason == "length", *counts)
