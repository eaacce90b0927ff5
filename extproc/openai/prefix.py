"""What a server may have of a prompt already: a hash of its beginning, by which requests that share
one are sent to the same replica.

Pure, and bounded but for the size of a single tool. Only for choosing among equals: two prompts
with the same hash are only a little less well spread.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, cast

import orjson

from extproc.openai.paths import CHAT, COMPLETIONS
from extproc.openai.request import Request

# A shorter beginning is shared by too many, or is too little to have: then the first message that
# follows counts too, which keeps the turns of a conversation together. About 256 tokens.
_ENOUGH_BYTES = 1024
# What is read of a prompt at most.
_MOST_CHARS = 16 * 1024
_MOST_TOKEN_IDS = 256
_LEADS = ("system", "developer")


def prefix_hash(request: Request, scope: str = "") -> str:
    """16 hex digits, the same in every processor; empty where there is nothing to go by.

    Chat: the tools, the system and developer messages that lead, and where that is less than 1 KiB
    the message after them. Completions: the beginning of the (first) prompt. To be asked before
    `request.forget_prompt`. `scope`: prompts of two scopes share nothing, not even a replica by
    intent.
    """
    if request.path == CHAT:
        pieces = list(_of_chat(request.members))
    elif request.path == COMPLETIONS:
        pieces = _of_completion(request.members.get("prompt"))
    else:
        return ""
    if not any(pieces):
        return ""
    return blake2b("\0".join((scope, *pieces)).encode(), digest_size=8).hexdigest()


def _of_chat(members: dict[str, Any]) -> Iterator[str]:
    size = 0
    tools = members.get("tools")
    for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
        try:
            told = orjson.dumps(tool).decode()[: _MOST_CHARS - size]
        except orjson.JSONEncodeError:  # it nests deeper than it writes, not deeper than it reads
            told = ""
        size += len(told)
        yield told
        if size >= _MOST_CHARS:
            return
    for message in cast("list[dict[str, Any]]", members["messages"]):
        if message["role"] not in _LEADS and size >= _ENOUGH_BYTES:
            return
        said = _text(message.get("content"))[: _MOST_CHARS - size]
        size += len(said)
        yield said
        if message["role"] not in _LEADS or size >= _MOST_CHARS:
            return


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[dict[str, Any] | str]", content or [])
    return "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in parts)


def _of_completion(prompt: object) -> list[str]:
    if isinstance(prompt, str):
        return [prompt[:_ENOUGH_BYTES]]
    items = cast("list[object]", prompt)
    if not isinstance(items[0], int):
        return _of_completion(items[0])
    return [" ".join(map(str, items[:_MOST_TOKEN_IDS]))]
