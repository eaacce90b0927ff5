"""Which signs of state a text has: `certain` ones alone refuse it, `suspect` ones make it doubtful.

Must never see an embedding: what follows from doubts is for others to say.
"""

import re
from collections.abc import Iterator

from extproc.cache.semantic.stateful_doubts import SUSPECT
from extproc.cache.semantic.stateful_signs import CERTAIN, Sign
from extproc.cache.semantic.stateful_text import Text

_EXPLETIVE_IT = re.compile(
    r"\b(?:is|was|will|would|can|could|does|did|has|how \w+ is) it (?:be |ever |"
    r"really )?(?:not )?"
    r"(?:safe|possible|impossible|ok|okay|true|legal|illegal|bad|good|better|best|worth|hard|"
    r"difficult|easy|rude|"
    r"necessary|normal|healthy|unhealthy|dangerous|cheaper|common|important|called|said|"
    r"(?:take|cost|mean)(?= .*\b(?:to|for|if|when|that)\b)|"
    r"matter|snow|rain(?:ing)?(?= (?:a lot )?in)|ethical|wrong|right|harmful|"
    r"useful)\b(?! (?:now|today))"
    r"|\b(?:is|was|does|did|will|would|can) it (?:\w+ ){1,3}(?:to|that|if|when)\b"
    r"|\bit (?:takes?|costs?|means?|is (?:called|possible|true|safe|said|important))\b"
    r"|\b(?:call|called|makes|find) it\b|\bmake it (?:possible|hard|easy|difficult)\b|"
    r"\bcall (?:it|them)\b|\bwhat is it called\b"
)
_CLAUSE_END = re.compile(r"(?<=\w\w\w)[.?!,;] (?=\w)")
# What comes with a text is what it points at.
_ABOUT_OTHERS = frozenset(("conversation", "pointing", "attachment"))


def certain(text: Text) -> Sign | None:
    """The first sign that alone refuses the text."""
    return next(_found(CERTAIN, text), None)


def suspect(text: Text) -> list[Sign]:
    """All that make it doubtful."""
    return list(_found(SUSPECT, text))


def _found(signs: tuple[Sign, ...], text: Text) -> Iterator[Sign]:
    for sign in signs:
        if (text.how_to and not sign.in_how_to) or (text.carries and sign.name in _ABOUT_OTHERS):
            continue
        words = text.words
        if sign.name == "pointing":  # behind the first clause a pronoun means what stands in it
            words = _EXPLETIVE_IT.sub("expletive", _CLAUSE_END.split(words, maxsplit=1)[0])
        if sign.pattern.search(words) and not (sign.unless and sign.unless.search(text.words)):
            yield sign
