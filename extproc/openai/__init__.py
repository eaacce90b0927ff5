"""The OpenAI API's JSON and SSE. The only package that knows these shapes.

`request` reads and splices requests, `answer` reads and replays answers, `replies` are our own;
`plain` is what the gateway itself asks of servers.
"""

from extproc.openai.answer import Answer, AnswerReader, UnreadAnswer
from extproc.openai.paths import CHAT, COMPLETIONS, MODELS
from extproc.openai.plain import (
    Said,
    asked_again,
    conversation,
    is_plain,
    plain_chat,
    said,
)
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
    "Said",
    "UnreadAnswer",
    "Usage",
    "abort_ids",
    "asked_again",
    "before_error",
    "conversation",
    "ended_choices",
    "error_body",
    "is_json",
    "is_plain",
    "last_usage",
    "models_body",
    "parse",
    "partial_ending",
    "plain_chat",
    "said",
    "stream_of",
    "whole_events",
    "with_changes",
]
