"""Which requests may be answered by what was said to another question, and what else than the
question has to be the same. Pure. Whoever is not found fit here never meets a candidate."""

from typing import Any, NamedTuple, cast

from extproc.openai import CHAT

MOST_CHARACTERS = 600
"""Longer questions are statements mostly, with more in them than can be explained."""

_INSTRUCTIONS = ("system", "developer")
# What changes with the question is left out of what has to be the same.
_NO_MATTER = frozenset(("stream", "stream_options", "user", "metadata", "messages"))
# An answer to these is an act or a shape of its own, not a text about the question.
_REFUSED = (
    "tools",
    "functions",
    "tool_choice",
    "function_call",
    "audio",
    "modalities",
    "prediction",
)


class Question(NamedTuple):
    text: str
    rest: dict[str, Any]
    """All else that can change the answer: instructions, parameters, unknown members."""


class Unfit(NamedTuple):
    why: str
    """For a person to read."""


def question_of(path: str, members: dict[str, Any], choices: int) -> Question | Unfit:
    """`members`: of a request that was parsed."""
    if path != CHAT:
        return Unfit("only chat completions are compared")
    if choices != 1:
        return Unfit("more than one choice is wanted")
    for name in _REFUSED:
        if members.get(name):
            return Unfit(f"the request has {name}")
    *before, last = cast("list[dict[str, Any]]", members["messages"])
    if any(message["role"] not in _INSTRUCTIONS for message in before):
        return Unfit("it is a conversation of more than one turn")
    if last["role"] != "user" or last.keys() - {"role", "content"}:
        return Unfit("the last message is not a plain one of a user's")
    text = _only_text(last["content"])
    if text is None:
        return Unfit("the question is not text alone")
    if len(text) > MOST_CHARACTERS:
        return Unfit(f"the question has more than {MOST_CHARACTERS} characters")
    rest = {name: value for name, value in members.items() if name not in _NO_MATTER}
    return Question(text, {**rest, "instructions": before})


def _only_text(content: object) -> str | None:
    if isinstance(content, list):
        parts = cast("list[object]", content)
        if len(parts) != 1 or not isinstance(parts[0], dict):
            return None
        part = cast("dict[str, object]", parts[0])
        if part.keys() != {"type", "text"} or part["type"] != "text":
            return None
        content = part["text"]
    return content if isinstance(content, str) and content.strip() else None
