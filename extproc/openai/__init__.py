"""The OpenAI API's JSON and SSE. The only package that knows these shapes.

`request` reads and splices requests, `answer` reads and replays answers, `replies` are our own.
"""

from extproc.openai.answer import Answer, AnswerReader, UnreadAnswer
from extproc.openai.paths import CHAT, COMPLETIONS, MODELS
from extproc.openai.replies import (
    ApiError,
    Usage,
    before_error,
    ended_choices,
    error_body,
    is_json,
    last_usage,
    models_body,
    partial_ending,
)
from extproc.openai.request import Request, abort_ids, parse, with_changes
from extproc.openai.sse import EVENT_END, stream_of, whole_events

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "EVENT_END",
    "MODELS",
    "Answer",
    "AnswerReader",
    "ApiError",
    "Request",
    "UnreadAnswer",
    "Usage",
    "abort_ids",
    "before_error",
    "ended_choices",
    "error_body",
    "is_json",
    "last_usage",
    "models_body",
    "parse",
    "partial_ending",
    "stream_of",
    "whole_events",
    "with_changes",
]
