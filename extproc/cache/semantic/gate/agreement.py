"""Two words that answer each other must also be used alike: the same preposition, determiner,
number, tense, voice. It must never let a difference pass that it has no rule for."""

from extproc.cache.semantic.gate.grammar import OWNERS
from extproc.cache.semantic.gate.lexicon import AMBIGUOUS_CAPITALS, UNIT_NAMES, VERBS, word_set
from extproc.cache.semantic.gate.parsed import Item, Parsed
from extproc.cache.semantic.gate.words import known

# Prepositions that say the same before the same word.
_ALIKE = {
    frozenset(pair)
    for pair in [
        ("using", "with"), ("upon", "on"), ("inside", "in"), ("via", "through"), ("", "of"),
        ("have-in", "in"), ("have-in", "on"), ("have-in", "of"),
    ]
}  # fmt: skip
# "turn into", "turn to"; not "get into the university", "get to the university".
_TURNING = word_set("translate convert transform")
# Classes in which "a dog" and "dogs" both mean any dog.
_GENERAL = frozenset(
    ("howto", "yn", "why", "how", "what", "diff", "mean", "when", "where", "for", "how much")
)
_FEW = frozenset(("list", "rec", "do", "what"))  # where one or many makes another answer


def disagreement(asked: Parsed, stored: Parsed, i: int, j: int, compound: bool) -> str | None:
    """Why word `i` of `asked` and word `j` of `stored` are not used alike. `compound`: one is the
    modifier of a compound ("Python list"), which the other says with a preposition."""
    a, b = asked.items[i], stored.items[j]
    if why := _name(asked, stored, a, b):
        return why
    if a.past != b.past and "past" not in (asked.tense, stored.tense):
        return f"'{a.surface}' and '{b.surface}' are in different tenses"
    if a.passive != b.passive:
        return f"'{a.surface}' is done by the subject in one and to it in the other"
    if compound:
        return None if {a.determiner, b.determiner} <= {"", "a", "the", "my"} else _owner(a, b)
    return (
        _nation(a, b)
        or _number(asked, i, stored, j)
        or _determiner(asked, i, stored, j)
        or _preposition(asked, stored, a, b)
    )


def _classes(asked: Parsed, stored: Parsed) -> set[str]:
    return {asked.question, stored.question}


def _name(asked: Parsed, stored: Parsed, a: Item, b: Item) -> str | None:
    if a.capital == b.capital or "" in (a.capital, b.capital):
        return None
    if (asked.lower or stored.lower) and a.surface not in AMBIGUOUS_CAPITALS:
        return None
    return f"'{a.surface}' is a name in one and a word in the other"


def _nation(a: Item, b: Item) -> str | None:
    """'Brazilian' is "Brazil's", but "in Danish" is not "in Denmark"."""
    if a.nation == b.nation or (b if a.nation else a).possessive:
        return None
    return f"'{a.surface}' is not '{b.surface}'"


def _number(asked: Parsed, i: int, stored: Parsed, j: int) -> str | None:
    a, b = asked.items[i], stored.items[j]
    one, many = (b, a) if a.plural else (a, b)
    if a.plural == b.plural or not a.surface[0].isalpha() or a.word in UNIT_NAMES:
        return None
    if a.word != b.word and a.surface.endswith("s") == b.surface.endswith("s"):
        return None  # a slip of the pen, which has no base form
    if a.word in VERBS and not (_heads(asked, i) or _heads(stored, j)):
        return None  # "how it works", "how does it work"
    if one.determiner == "a" and not many.determiner and _classes(asked, stored) <= _GENERAL:
        return None
    return f"'{one.surface}' is one and '{many.surface}' are many"


def _heads(parsed: Parsed, place: int) -> bool:
    """Whether a word that may be a verb is more likely what the phrase is about: "which books"."""
    if place == 0:
        return parsed.question in _FEW
    return bool(parsed.items[place].determiner) and not _inside(parsed, place)


def _inside(parsed: Parsed, place: int) -> bool:
    """Another word of the same noun phrase stands before it."""
    return place > 0 and parsed.items[place - 1].phrase == parsed.items[place].phrase


def _determiner(asked: Parsed, i: int, stored: Parsed, j: int) -> str | None:
    a, b = asked.items[i], stored.items[j]
    both = {a.determiner, b.determiner}
    if len(both) == 1 or (a.plural != b.plural and "the" not in both):
        return _owner(a, b)
    if both & OWNERS:
        if (
            _classes(asked, stored) == {"howto"}
            and both & {"my", "your"}
            and both & {"", "a", "the"}
        ):
            return None  # "change my password", "change a password"
        return _owner(a, b)
    if _inside(asked, i) and _inside(stored, j):
        return None  # said once, at the first word of the phrase
    said, unsaid = ((asked, i), (stored, j)) if a.determiner else ((stored, j), (asked, i))
    if "" in both and _inside(*said):
        return None
    if both == {"", "the"} and (_only_one(*said) or _only_one(*unsaid)):
        return None
    if both == {"a", ""} and (
        _classes(asked, stored) & {"howto", "diff", "mean"} or _is_name(a) or _is_name(b)
    ):
        return None
    return f"'{_with(a.determiner, a)}' is not '{_with(b.determiner, b)}'"


def _owner(a: Item, b: Item) -> str | None:
    if a.determiner == b.determiner or not {a.determiner, b.determiner} & OWNERS:
        return None
    return f"'{_with(a.determiner, a)}' is not '{_with(b.determiner, b)}'"


def _is_name(item: Item) -> bool:
    return item.capital == "c" or not known(item.surface)


def _only_one(parsed: Parsed, place: int) -> bool:
    """'(the) BBC', '(the) tallest', '(the) causes of': the article says nothing new."""
    item = parsed.items[place]
    if _is_name(item) or item.word.endswith("+est") or item.word in ("best", "worst", "most"):
        return True
    behind = next((x for x in parsed.items[place:] if x.phrase != item.phrase), None)
    return behind is not None and behind.preposition in ("of", "in", "for", "between", "on")


def _preposition(asked: Parsed, stored: Parsed, a: Item, b: Item) -> str | None:
    both = {a.preposition, b.preposition}
    if len(both) == 1 or frozenset(both) in _ALIKE:
        return None
    if both == {"", "to"} and a.word in VERBS and a.surface == b.surface:
        return None
    if both == {"into", "to"} and all(
        any(item.word in _TURNING for item in items) for items in (asked.items, stored.items)
    ):
        return None
    return f"'{_with(a.preposition, a)}' is not '{_with(b.preposition, b)}'"


def _with(small: str, item: Item) -> str:
    return f"{small} {item.surface}".strip()
