"""The OpenAI API's JSON and SSE. The only package that knows these shapes.

`request` reads and splices requests (`prompts`: what a model is to read; `spans`: where to splice),
`members` are vLLM's own; `answer` reads and replays answers, `replies` are our own; `plain` is what
the gateway itself asks of servers, `listed` which models they say they have.
"""

from extproc.openai.answer import Answer, AnswerReader, UnreadAnswer
from extproc.openai.listed import listed_models
from extproc.openai.members import NOTHING, OwnMembers, moved, own_members
from extproc.openai.paths import CHAT, COMPLETIONS, EMBEDDINGS, MODELS
from extproc.openai.plain import (
    Said,
    asked_again,
    conversation,
    is_plain,
    plain_chat,
    said,
)
from extproc.openai.prefix import prefix_hash
from extproc.openai.replies import (
    ApiError,
    Usage,
    before_error,
    ended_choices,
    error_body,
    error_message,
    is_json,
    last_usage,
    models_body,
    partial_ending,
)
from extproc.openai.request import Request, abort_ids, no_such_path, parse, with_changes
from extproc.openai.spans import Span
from extproc.openai.sse import EVENT_END, stream_of, whole_events

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "EMBEDDINGS",
    "EVENT_END",
    "MODELS",
    "NOTHING",
    "Answer",
    "AnswerReader",
    "ApiError",
    "OwnMembers",
    "Request",
    "Said",
    "Span",
    "UnreadAnswer",
    "Usage",
    "abort_ids",
    "asked_again",
    "before_error",
    "conversation",
    "ended_choices",
    "error_body",
    "error_message",
    "is_json",
    "is_plain",
    "last_usage",
    "listed_models",
    "models_body",
    "moved",
    "no_such_path",
    "own_members",
    "parse",
    "partial_ending",
    "plain_chat",
    "prefix_hash",
    "said",
    "stream_of",
    "whole_events",
    "with_changes",
]
