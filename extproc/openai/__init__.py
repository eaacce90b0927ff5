"""The OpenAI API's JSON and SSE. The only package that knows these shapes.

`request` reads and splices requests (`prompts`: what a model is to read; `spans`: where to splice),
`answer` reads and replays answers, `replies` are our own.
"""

from extproc.openai.answer import Answer, AnswerReader, UnreadAnswer
from extproc.openai.paths import CHAT, COMPLETIONS, EMBEDDINGS, MODELS
from extproc.openai.prefix import prefix_hash
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
from extproc.openai.request import Request, abort_ids, no_such_path, parse, with_changes
from extproc.openai.sse import EVENT_END, stream_of, whole_events

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "EMBEDDINGS",
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
    "no_such_path",
    "parse",
    "partial_ending",
    "prefix_hash",
    "stream_of",
    "whole_events",
    "with_changes",
]
