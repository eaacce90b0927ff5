"""The OpenAI API's JSON and SSE. The only package that knows these shapes.

`request` reads and splices requests, `answer` reads and replays answers, `replies` are our own.
"""

from extproc.openai.answer import Answer, AnswerReader, UnreadAnswer
from extproc.openai.members import NOTHING, OwnMembers, moved, own_members
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
from extproc.openai.request import Request, Span, abort_ids, parse, with_changes
from extproc.openai.sse import EVENT_END, stream_of, whole_events

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "EVENT_END",
    "MODELS",
    "NOTHING",
    "Answer",
    "AnswerReader",
    "ApiError",
    "OwnMembers",
    "Request",
    "Span",
    "UnreadAnswer",
    "Usage",
    "abort_ids",
    "before_error",
    "ended_choices",
    "error_body",
    "is_json",
    "last_usage",
    "models_body",
    "moved",
    "own_members",
    "parse",
    "partial_ending",
    "stream_of",
    "whole_events",
    "with_changes",
]
