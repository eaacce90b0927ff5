"""Is this text for the small or for the large pool? By words of the last user message alone.

Whole words, any case. Never looks at more than the two ends of a long text.
"""

import re
from itertools import islice
from typing import Literal, NamedTuple

# A client that has less time than this gets the small pool, whatever it asks.
_IMPATIENT_MS = 1000
_SHORT_QUESTION_WORDS = 20
# What is looked at of a long text: its beginning and its end, where people say what they want.
_LOOKED_AT_CHARS = 4096
_HARD = ("compare", "analyse", "analyze", "why", "design")
# Without \b, which a hostile text would make ten times as slow.
_ANY_HARD = re.compile("|".join(_HARD))
_MOST_PARTS_OF_WORDS = 200


Size = Literal["small", "large"]


class Judgement(NamedTuple):
    size: Size
    reason: str


_HURRIED = Judgement("small", "latency-budget")
_SHORT_QUESTION = Judgement("small", "short-question")
_DEFAULT = Judgement("small", "default")


def hurried(latency_budget_ms: float | None) -> Judgement | None:
    """What a client with too little time gets; None for all others."""
    if latency_budget_ms is not None and latency_budget_ms < _IMPATIENT_MS:
        return _HURRIED
    return None


def judge(last_user_text: str, latency_budget_ms: float | None) -> Judgement:
    """The first rule that applies, with its name as the reason. Of a text above 8,192 characters
    the middle is not looked at: a rule must not cost more than the request is worth."""
    if judgement := hurried(latency_budget_ms):
        return judgement
    if len(last_user_text) > 2 * _LOOKED_AT_CHARS:
        ends = (last_user_text[:_LOOKED_AT_CHARS], last_user_text[-_LOOKED_AT_CHARS:])
        last_user_text = " ... ".join(ends)
    if "?" in last_user_text and _fewer_words_than(last_user_text, _SHORT_QUESTION_WORDS):
        return _SHORT_QUESTION
    if word := _hard_word(last_user_text.lower()):
        return Judgement("large", f"word-{word}")
    return _DEFAULT


def _hard_word(text: str) -> str | None:
    """The first one. After 200 that are only parts of longer words there is none."""
    for word in _HARD:
        if word in text:
            break
    else:
        return None
    for match in islice(_ANY_HARD.finditer(text), _MOST_PARTS_OF_WORDS):
        start, end = match.span()
        if not _is_in_word(text[start - 1 : start]) and not _is_in_word(text[end : end + 1]):
            return match[0]
    return None


def _is_in_word(character: str) -> bool:
    """As a regular expression's \\w; empty: no."""
    return character.isalnum() or character == "_"


def _fewer_words_than(text: str, limit: int) -> bool:
    # maxsplit keeps a megabyte prompt from being cut into words that nobody counts.
    return len(text.split(maxsplit=limit)) < limit
