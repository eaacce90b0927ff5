"""The OpenAI API's JSON and SSE. The only package that knows these shapes.

`request` reads and splices requests, `answer` reads and replays answers, `replies` are our own.
"""

from extproc.openai.answer import Answer, AnswerReader, UnreadAnswer
from extproc.openai.paths import CHAT, COMPLETIONS, MODELS
from extproc.openai.replies import (
    ApiError,
    before_error,
    ended_choices,
    error_body,
    is_json,
    models_body,
    partial_ending,
)
from extproc.openai.request import Request, abort_ids, parse, with_changes
from extproc.openai.sse import stream_of

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "MODELS",
    "Answer",
    "AnswerReader",
    "ApiError",
    "Request",
    "UnreadAnswer",
    "abort_ids",
    "before_error",
    "ended_choices",
    "error_body",
    "is_json",
    "models_body",
    "parse",
    "partial_ending",
    "stream_of",
    "with_changes",
]
