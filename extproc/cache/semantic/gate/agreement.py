"""Two words that answer each other must also be used alike: the same preposition, determiner, number,
negation, voice. It must never let a difference pass that it has no rule for."""

from extproc.cache.semantic.gate.lexicon import AMBIGUOUS_CAPITALS as AMBIGUOUS
from extproc.cache.semantic.gate.lexicon import VERBS
from extproc.cache.semantic.gate.parsed import Item, Parsed

# Prepositions that say the same before the same word.
_ALIKE = {
    frozenset(pair)
    for pair in [
        ("into", "to"), ("using", "with"), ("upon", "on"), ("inside", "in"), ("within", "in"),
        ("onto", "to"), ("have-in", "in"), ("have-in", "on"), ("have-in", "of"), ("via", "through"),
        ("", "of"),
    ]
}  # fmt: skip
# Classes in which "a dog" and "dogs" both mean any dog.
_GENERAL = frozenset(("howto", "yn", "why", "how", "what", "diff", "mean", "when", "where", "for"))


def disagreement(asked: Parsed, stored: Parsed, a: Item, b: Item) -> str | None:
    """Why the words `a` of `asked` and `b` of `stored` are not used alike; their order is not looked at."""
    if a.negated != b.negated:
        return (
            None if a.word == b.word else f"only one of '{a.surface}' and '{b.surface}' is negated"
        )
    if why := _capital(asked, stored, a, b) or _number(asked, stored, a, b):
        return why
    if a.past != b.past and "past" not in (asked.tense, stored.tense):
        return f"'{a.surface}' and '{b.surface}' are in different tenses"
    if a.passive != b.passive:
        return f"'{a.surface}' is done by the subject in one and to it in the other"
    if {a.determiner, b.determiner} in ({"a", "the"}, *_OWNERS):
        return f"'{a.determiner} {a.surface}' is not '{b.determiner} {b.surface}'"
    return None


_OWNERS = [
    {one, other}
    for one in ("my", "your", "his", "her", "our", "their", "its")
    for other in ("my", "your", "his", "her", "our", "their", "its")
    if one != other
] + [{one, ""} for one in ("his", "her", "their", "its")]


def _capital(asked: Parsed, stored: Parsed, a: Item, b: Item) -> str | None:
    if a.capital == b.capital or "" in (a.capital, b.capital):
        return None
    if (asked.lower or stored.lower) and a.surface not in AMBIGUOUS:
        return None
    return f"'{a.surface}' is a name in one and a word in the other"


def _number(asked: Parsed, stored: Parsed, a: Item, b: Item) -> str | None:
    if a.plural == b.plural or not (a.surface[0].isalpha()):
        return None
    one, many = (b, a) if a.plural else (a, b)
    if one.word in VERBS and not one.determiner and not many.determiner:
        return None  # "how it works", "how does it work"
    general = asked.question in _GENERAL and one.determiner == "a" and not many.determiner
    return None if general else f"'{one.surface}' is one and '{many.surface}' are many"


def preposition_differs(a: Item, b: Item) -> str | None:
    one, other = a.preposition, b.preposition
    if one == other or frozenset((one, other)) in _ALIKE:
        return None
    if {one, other} == {"", "to"} and a.word in VERBS and a.surface == b.surface:
        return None
    return f"'{_with(a)}' is not '{_with(b)}'"


def _with(item: Item) -> str:
    return f"{item.preposition} {item.surface}".strip()
