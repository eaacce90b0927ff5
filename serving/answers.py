"""The bytes of an answer: vLLM's JSON and SSE shapes, around a text that says it is simulated.

Pure. What is constant for a request is built once, so that a token costs a few joins of bytes.
Must never decide how long an answer gets.
"""

from functools import cache
from typing import Any

import orjson

from serving.protocol import Ask, error_body

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
ENGINE_DEAD = "EngineCore encountered an issue. This failure is simulated (/sim/faults)."
ERROR_EVENT = b"data: " + orjson.dumps(error_body(500, ENGINE_DEAD)) + b"\n\n"

_OPENING_TEXT = "This is a simulated answer: no model ran. Only numbered filler follows:"
_OPENING = _OPENING_TEXT.split()


@cache
def word(number: int) -> bytes:
    """The text of the `number`th token (from 1). Needs no escape in JSON."""
    word = _OPENING[number - 1] if number <= len(_OPENING) else f"word{number}"
    return (word if number == 1 else f" {word}").encode()


def text(tokens: int) -> str:
    """The first so many tokens of the one answer there is."""
    return b"".join(map(word, range(1, tokens + 1))).decode()


class Answer:
    """How the answer to one request looks on the wire. `model` is the first served name.

    Chunks of a stream are bytes, ready to be written; `tokens` is what the chunk's choice has got
    so far (for its text and the running usage), `fresh` says that the last of them is new.
    """

    def __init__(self, ask: Ask, *, answer_id: str, model: str, created: int) -> None:
        self._ask = ask
        self._prompt_tokens = sum(prompt.tokens for prompt in ask.prompts)
        self._choices = len(ask.prompts) * ask.n
        self._constant = {
            "id": answer_id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": created,
            "model": model,
        }
        streamed = dict(self._constant)
        if ask.chat:
            streamed["object"] = "chat.completion.chunk"
        # `{"id":...,"model":"..."` without its closing brace, to go on with the choices.
        self._head = b"data: " + orjson.dumps(streamed)[:-1]
        before = b'"delta":{"content":"' if ask.chat else b'"text":"'
        self._before_text = [
            b'%b,"choices":[{"index":%d,%b' % (self._head, index, before)
            for index in range(self._choices)
        ]
        self._after_text = {
            reason: b'%b,"logprobs":null,"finish_reason":%b,"stop_reason":null}]'
            % (b'"}' if ask.chat else b'"', orjson.dumps(reason))
            for reason in (None, "stop", "length", "abort")
        }

    def role_chunks(self) -> bytes:
        """What a chat begins with, together with its first token; nothing for a completion."""
        if not self._ask.chat:
            return b""
        return b"".join(
            b'%b,"choices":[{"index":%d,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]%b' % (self._head, index, self._end_of_chunk(0))
            for index in range(self._choices)
        )

    def chunk(self, index: int, tokens: int, *, fresh: bool, ended: str | None) -> bytes:
        """The next chunk of one choice."""
        return b"".join(
            (
                self._before_text[index],
                word(tokens) if fresh else b"",
                self._after_text[ended],
                self._end_of_chunk(tokens),
            )
        )

    def usage_chunk(self, tokens: int, cached_tokens: int) -> bytes:
        """The last chunk before [DONE], if the client asked for usage; else nothing."""
        if not self._ask.include_usage:
            return b""
        usage = orjson.dumps(self._usage(tokens, cached_tokens))
        return b'%b,"choices":[],"usage":%b}\n\n' % (self._head, usage)

    def whole(self, choices: list[tuple[int, str]], cached_tokens: int) -> bytes:
        """The JSON of an answer that is not streamed; (tokens, finish reason) of each choice."""
        shown: list[dict[str, Any]] = []
        for index, (tokens, reason) in enumerate(choices):
            content = text(tokens)
            message = {"message": _message(content)} if self._ask.chat else {"text": content}
            ending = {"logprobs": None, "finish_reason": reason, "stop_reason": None}
            shown.append({"index": index, **message, **ending})
        usage = self._usage(sum(tokens for tokens, _ in choices), cached_tokens)
        return orjson.dumps({**self._constant, "choices": shown, "usage": usage})

    def _end_of_chunk(self, tokens: int) -> bytes:
        if not self._ask.continuous_usage:
            return b"}\n\n"
        return b',"usage":%b}\n\n' % orjson.dumps(self._usage(tokens))

    def _usage(self, tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
        """As vLLM with --enable-prompt-tokens-details; a running usage has no details."""
        details = None if cached_tokens is None else {"cached_tokens": cached_tokens}
        return {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": details,
        }


def _message(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "refusal": None, "tool_calls": []}
