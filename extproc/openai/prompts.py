"""What a request gives a model to read: its text, and an estimate of its tokens.

Only the shapes that Forebay counts by are checked; every other member is the server's to judge. No
message made here quotes the body: prompts must not leak into answers or logs.
"""

from typing import Any, cast

from extproc.openai.replies import invalid
from extproc.openai.spans import Span

MAX_PROMPTS = 128
MAX_INPUTS = 2048  # of an embeddings request; as many as OpenAI takes
MAX_ITEMS = 20_000  # messages, and in all of them: parts of contents, calls of tools

# The estimate of prompt tokens: no tokenizer, right within some tens of percent.
BYTES_PER_TOKEN = 4  # of UTF-8; about right for English and code, and for CJK at 3 bytes a sign
TOKENS_PER_MESSAGE = 4  # what a chat template puts around a message
TOKENS_PER_MEDIA_PART = 765  # one image of 1024x1024 at OpenAI's high detail; audio, files alike


def chat_prompt(members: dict[str, Any], spans: dict[str, Span]) -> tuple[str, int]:
    """The text of the last user message, and an estimate of the tokens of the whole prompt:
    the UTF-8 bytes of all text (contents, names, tool calls, the tools' JSON) / 4, rounded up,
    and a constant for each message and each part that is not text."""
    messages = members.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("Set `messages` to a list of at least one message.", "messages")
    messages = cast("list[object]", messages)
    last_user: object = None
    size = media = 0
    items = len(messages)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid("Each of `messages` must be an object.", f"messages[{index}]")
        message = cast("dict[str, object]", message)
        role, content = message.get("role"), message.get("content")
        is_text = isinstance(content, str)
        if len(message) > 2 or not is_text:
            items += _length(content) + _length(message.get("tool_calls"))
        if items > MAX_ITEMS:
            raise invalid(f"`messages` holds more than {MAX_ITEMS} items: send fewer.", "messages")
        if not isinstance(role, str):
            raise invalid(
                "Each of `messages` needs a `role`, such as `user`.", f"messages[{index}].role"
            )
        if is_text:
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
        raise invalid("A message's `content` must be a string, a list of parts, or null.", where)
    size = media = 0
    for part in cast("list[object]", content):
        if not isinstance(part, dict | str):
            raise invalid('Each part of a content must be an object with a "type".', where)
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


def completion_prompt(members: dict[str, Any]) -> tuple[str, int, int]:
    """The text, an estimate of the tokens and the number of prompts."""
    return _texts_or_ids(members, "prompt", MAX_PROMPTS)


def embedding_input(members: dict[str, Any]) -> tuple[str, int, int]:
    """The text, an estimate of the tokens and the number of inputs, each of which is a vector."""
    return _texts_or_ids(members, "input", MAX_INPUTS)


def _texts_or_ids(members: dict[str, Any], name: str, most: int) -> tuple[str, int, int]:
    """The text, an estimate of the tokens (of text its UTF-8 bytes / 4, rounded up for each one;
    of token ids their number) and how many there are."""
    value = members.get(name)
    if isinstance(value, str):
        return value, _ceil_tokens(_utf8_size(value)), 1
    if isinstance(value, list) and value:
        kinds = set(map(type, cast("list[object]", value)))  # exact types: a bool is no token id
        if kinds != {int} and len(cast("list[object]", value)) > most:
            raise invalid(f"`{name}` may hold at most {most} {name}s: send several requests.", name)
        if kinds == {str}:
            texts = cast("list[str]", value)
            tokens = sum(_ceil_tokens(_utf8_size(text)) for text in texts)
            return "\n".join(texts), tokens, len(texts)
        if kinds == {int}:
            return "", len(cast("list[int]", value)), 1
        if kinds == {list}:
            lists = cast("list[list[object]]", value)
            if all(set(map(type, ids)) == {int} for ids in lists):
                return "", sum(map(len, lists)), len(lists)
    raise invalid(
        f"Set `{name}` to a string, or to a non-empty list of strings, of token ids,"
        " or of non-empty lists of token ids.",
        name,
    )


def _ceil_tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
