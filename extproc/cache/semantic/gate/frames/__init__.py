"""The many ways to ask one question, each to one writing that begins with its class."""

from extproc.cache.semantic.gate.frames import facts, meaning, tasks
from extproc.cache.semantic.gate.frames.parts import Table, apply, compiled
from extproc.cache.semantic.gate.frames.politeness import strip_politeness

# "In Python, how do I X?" is "How do I X in Python?".
_FRONTED: Table = [(r"^in ([^ ;|]+(?: [^ ;|]+)?) ; (.+)$", r"\2 in \1")]

# In the order in which they apply: a later rule reads what an earlier one wrote.
_RULES = compiled(
    _FRONTED,
    tasks.COMPARE,
    tasks.HOW_TO,
    tasks.POSSIBLE,
    facts.ENTITY,
    facts.AMOUNT,
    facts.REASON,
    meaning.WHAT,
    meaning.LISTS,
)


def frame(words: str) -> str:
    return apply(_RULES, strip_politeness(words))
