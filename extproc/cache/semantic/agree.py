"""Whether a cached answer and a model's fresh answer to the same prompt say the same. A heuristic.

Pure. Both are a model's, perhaps in other words: what counts is a contradiction, not a wording. It
looks at yes and no, at numbers, at a negation in one alone, in short answers at names, and at how
near the two texts are.
"""

import re
from typing import NamedTuple

_NUMBER = re.compile(
    r"(?<![\w.])\d+(?:[.,]\d+)*(?![\w])|(?<![\w.])\d+(?:[.,]\d+)*(?=%|[a-zA-Z]{1,3}\b)"
)
_POLARITY = re.compile(
    r"\W*(yes|no|correct|incorrect|true|false|never|absolutely|certainly)\b[,.!;: \n]"
)
_YES = frozenset(("yes", "correct", "true", "absolutely", "certainly"))
_NEGATION = re.compile(
    r"\b(?:not|never|cannot|nobody|nothing|neither|nor|without|unable|unsafe|unlikely|impossible|"
    r"illegal|no)\b|n['’]t\b"
)
_HELPING = frozenset(("do", "does", "did"))
# In the middle of a sentence, or with a capital inside.
_NAME = re.compile(r"(?<![.!?:\n] )(?<!^)(?<!\")\b(?:[A-Z][\w-]+|\w+[A-Z_]\w*)\b")
_FEW_WORDS = 12
"""Names are compared in shorter answers: a longer one tells more than what was asked."""

LEAST_SIMILARITY = 0.6
"""Below it two answers are about different things, whatever they say."""
_SAME_WORDS = 0.9
"""So many of all their words in common: then a negation in one alone turns it round."""


class Agreement(NamedTuple):
    agree: bool
    why: str
    """One word of a fixed set, fit for a metric's label."""


def answers_agree(cached: str, fresh: str, similarity: float | None) -> Agreement:
    """`similarity`: the cosine of the answers' embeddings; None if there is none, as for a long
    one: then only the texts speak.

    What it gets wrong, with MiniLM int8: of 998 pairs of one statement in two wordings
    (gptcache-mock), 4 are taken for a contradiction. Of 16 pairs of short answers to near-miss
    questions 13 are found; an opposite word or a swapped direction alone is not. Of 998 pairs of a
    long statement and the nearest other one of the same manual, only 102 are found: a false hit
    among long texts of one topic mostly passes. So the rate that a budget sees is a lower bound,
    and a budget much below 0.01 would mostly see this heuristic's own mistakes."""
    if _words(cached) == _words(fresh):
        return Agreement(True, "same")
    if _opposed(cached, fresh):
        return Agreement(False, "polarity")
    if _contradict(_numbers(cached), _numbers(fresh)):
        return Agreement(False, "numbers")
    if _negation_alone(cached, fresh):
        return Agreement(False, "negation")
    if _names_contradict(cached, fresh):
        return Agreement(False, "names")
    if similarity is None:
        return Agreement(True, "no_contradiction")
    if similarity < LEAST_SIMILARITY:
        return Agreement(False, "similarity")
    return Agreement(True, "similar")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s.,;:!?'\"*`#-]", text.lower())


def _opposed(cached: str, fresh: str) -> bool:
    """One begins with yes, the other with no."""
    said = [_POLARITY.match(text.lower() + " ") for text in (cached, fresh)]
    return None not in said and len({match[1] in _YES for match in said if match}) == 2


def _contradict(first: set[float], second: set[float]) -> bool:
    """Each has what the other has not. One that only says more is no contradiction."""
    return bool(first - second) and bool(second - first)


def _names_contradict(cached: str, fresh: str) -> bool:
    """Each of two short answers has a name that does not stand in the other at all."""
    if max(len(cached.split()), len(fresh.split())) > _FEW_WORDS:
        return False
    texts = (cached.lower(), fresh.lower())
    first, second = ({name.lower() for name in _NAME.findall(text)} for text in (cached, fresh))
    return any(name not in texts[1] for name in first) and any(
        name not in texts[0] for name in second
    )


def _numbers(text: str) -> set[float]:
    """ "1,000" is 1000; "1." at a line's start counts a list."""
    text = re.sub(r"(?m)^\s*\d+[.)]\s", "", text)
    return {float(_plain(match[0])) for match in _NUMBER.finditer(text)}


def _plain(number: str) -> str:
    grouped = re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", number)
    number = number.replace(",", "") if grouped else number.replace(",", ".")
    return number if number.count(".") < 2 else number.replace(".", "")  # a version, a date


def _negation_alone(cached: str, fresh: str) -> bool:
    """Nearly the same words, but for a negation."""
    counts = [len(_NEGATION.findall(text.lower())) % 2 for text in (cached, fresh)]
    if counts[0] == counts[1]:
        return False
    first, second = (
        set(_words(_NEGATION.sub(" ", text.lower()))) - _HELPING for text in (cached, fresh)
    )
    return len(first & second) >= _SAME_WORDS * len(first | second)
