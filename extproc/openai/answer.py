"""Answers of a model: read from JSON or from a stream, and given again as either.

An Answer is only made of what is whole and plain: a partial answer, an error, a call of a tool, or
a member that a replay could not give again as it was, makes none.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import orjson

from extproc.openai.paths import CHAT
from extproc.openai.sse import EventReader, stream_of

_WHOLE = ("stop", "length")  # the finish reasons of an answer that ended by itself
_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
# What a replay gives again, or makes anew. Anything else that an answer says makes it no Answer:
# token ids, audio, calls of tools, and what we do not know.
_TOP = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
_CHOICE = {"index", "message", "delta", "text", "finish_reason"}
_MESSAGE = {"role", *_TEXTS}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `members` is the JSON object of a not streamed answer, without its id and its
    time. Tokens as the server counted them."""

    path: str
    members: bytes
    prompt_tokens: int
    completion_tokens: int

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def text(self) -> str:
        """What its first choice says."""
        choice = cast("dict[str, Any]", orjson.loads(self.members))["choices"][0]
        said = choice["message"].get("content") if self.path == CHAT else choice["text"]
        return said or ""

    @property
    def was_cut(self) -> bool:
        """Whether a choice of it ended at its limit of tokens."""
        choices = cast("dict[str, Any]", orjson.loads(self.members))["choices"]
        return any(choice["finish_reason"] == "length" for choice in choices)

    def as_json(self, request_id: str, created: int) -> bytes:
        """The answer to a request that does not stream; `created` in seconds since the epoch."""
        head = orjson.dumps({"id": self._id(request_id), "created": created})
        return head[:-1] + b"," + self.members[1:]

    def as_sse(self, request_id: str, created: int, *, with_usage: bool) -> bytes:
        """The whole stream of a request that does: a chunk for the text of each choice."""
        members = cast("dict[str, Any]", orjson.loads(self.members))
        chat = self.path == CHAT
        head = {
            "id": self._id(request_id),
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": members.get("model"),
        }
        chunks: list[object] = []
        for choice in members["choices"]:
            index, reason = choice["index"], choice["finish_reason"]
            if chat:
                texts = {k: choice["message"][k] for k in _TEXTS if choice["message"].get(k)}
                said: dict[str, Any] = {"delta": {"role": "assistant", "content": "", **texts}}
                end: dict[str, Any] = {"delta": {}}
            else:
                said, end = {"text": choice["text"]}, {"text": ""}
            for part, finish_reason in ((said, None), (end, reason)):
                one = {"index": index, **part, "logprobs": None, "finish_reason": finish_reason}
                chunks.append({**head, "choices": [one]})
        if with_usage:
            chunks.append({**head, "choices": [], "usage": members.get("usage")})
        return stream_of(chunks)

    def _id(self, request_id: str) -> str:
        return f"{'chatcmpl' if self.path == CHAT else 'cmpl'}-{request_id}"


class UnreadAnswer(NamedTuple):
    """The body of a not streamed answer, as it came: most are never asked for again, so `read` is
    left to whoever first does."""

    path: str
    choices: int
    body: bytes

    @property
    def size(self) -> int:
        return len(self.body)

    def read(self) -> Answer | None:
        """The answer, if it is one that may be given again."""
        try:
            return _whole(self.path, orjson.loads(self.body), self.choices)
        except _OTHER_SHAPE:
            return None


class AnswerReader:
    """Reads an answer that passes by: `feed` each piece, then `end`. Above `max_bytes` it gives up,
    and holds nothing any more."""

    def __init__(
        self, path: str, *, streamed: bool, choices: int = 1, max_bytes: int = 1024 * 1024
    ) -> None:
        self._path = path
        self._choices = choices
        self._pieces: list[bytes] = []
        self._events = EventReader() if streamed else None
        self._left = max_bytes

    def feed(self, piece: bytes) -> bool:
        """Whether the answer has ended by itself: a stream has with its [DONE], and a client may
        leave right after it."""
        self._left -= len(piece)
        if self._left < 0:
            self._pieces.clear()
        elif self._events is None:
            self._pieces.append(piece)
        else:
            self._pieces += self._events.feed(piece)
            return bool(self._pieces) and self._pieces[-1] == _DONE
        return False

    def end(self) -> Answer | UnreadAnswer | None:
        """The answer; None for a stream that may not be given again, or one above the limit."""
        if self._left < 0:
            return None
        if self._events is None:
            return UnreadAnswer(self._path, self._choices, b"".join(self._pieces))
        try:
            members = _assemble(self._path, self._pieces + self._events.end())
            return _whole(self._path, members, self._choices)
        except _OTHER_SHAPE:
            return None


_DONE = b"[DONE]"
# What reading raises where the JSON is not that of an answer.
_OTHER_SHAPE = (orjson.JSONDecodeError, LookupError, TypeError, AttributeError, ValueError)


def _says_more(members: dict[str, Any], known: set[str]) -> bool:
    return not members.keys() <= known and any(
        value and name not in known for name, value in members.items()
    )


def _whole(path: str, members: dict[str, Any], count: int) -> Answer | None:
    choices, usage = members["choices"], members.get("usage")
    if _says_more(members, _TOP) or not isinstance(usage, dict):
        return None
    if not isinstance(members.get("model"), str):
        return None  # a replay says whose answer it is
    used = cast("dict[str, object]", usage)
    if [choice["index"] for choice in choices] != list(range(count)):
        return None
    for choice in choices:
        if choice["finish_reason"] not in _WHOLE or _says_more(choice, _CHOICE):
            return None
        if path == CHAT:
            message = choice["message"]
            if message.get("role") != "assistant" or _says_more(message, _MESSAGE):
                return None
            texts = [message.get(name) for name in _TEXTS]
        else:
            texts = [choice["text"]]
        if not all(text is None or isinstance(text, str) for text in texts):
            return None
    return Answer(
        path,
        orjson.dumps({k: v for k, v in members.items() if k not in ("id", "created")}),
        _count(used.get("prompt_tokens")),
        _count(used.get("completion_tokens")),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _assemble(path: str, events: list[bytes]) -> dict[str, Any]:
    """The not streamed answer that says the same as this stream; raises on any other shape."""
    if not events or events.pop() != _DONE:
        raise ValueError("the stream does not end with [DONE]")
    chat = path == CHAT
    members: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        chunk = orjson.loads(event)
        if _says_more(chunk, _TOP):
            raise ValueError("more than a replay could give again, or an error")
        members.setdefault("model", chunk["model"])
        if chunk.get("usage"):
            members["usage"] = chunk["usage"]
        for part in chunk["choices"]:
            index = part["index"]
            choice = choices.setdefault(index, {"index": index, "text": "", "finish_reason": None})
            if _says_more(part, _CHOICE) or choice["finish_reason"]:
                raise ValueError("more than a replay could give again")
            choice["finish_reason"] = part.get("finish_reason")
            if chat:
                _add_delta(choice.setdefault("message", {"role": "assistant"}), part["delta"])
            else:
                choice["text"] += part["text"]
    if chat:
        for choice in choices.values():
            del choice["text"]
            choice["message"].setdefault("content", None)
    members["object"] = "chat.completion" if chat else "text_completion"
    members["choices"] = [choices[index] for index in sorted(choices)]
    return members


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name in _TEXTS:
            if value is not None:
                message[name] = message.get(name, "") + value
        elif value and name != "role":
            raise ValueError("more than a replay could give again")
