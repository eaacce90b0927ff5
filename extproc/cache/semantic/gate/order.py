"""Words may change places only where English says the same in both orders. All else is another
question: "does A sue B", "10 by 2"."""

from extproc.cache.semantic.gate.grammar import ADVERBS, SCOPE
from extproc.cache.semantic.gate.lexicon import NAMES, VERBS, word_set
from extproc.cache.semantic.gate.parsed import Item, Parsed
from extproc.cache.semantic.gate.words import known

Pair = tuple[int, int]
# Prepositions whose phrase may stand before or behind another.
_FREE = word_set("from to into in on at with for using during before after about via through")
# "car tyre": "tyre of a car". With "in" and "on" only names: "list in Python", but a tree house is
# no house in a tree; and never the adjective of a country: Italian food is no food in Italy.
_OF = frozenset(("of", "for"))
_AT = frozenset(("in", "on"))


def moved(asked: Parsed, stored: Parsed, pairs: list[Pair]) -> tuple[str | None, set[Pair]]:
    """The first forbidden change of order, or None; and the pairs that moved as part of a compound,
    whose preposition is explained by it."""
    a, b = asked.items, stored.items
    compounds: set[Pair] = set()
    for index, one in enumerate(pairs):
        for two in pairs[index + 1 :]:
            if one[1] < two[1]:
                continue
            first, second = a[one[0]], a[two[0]]
            if compound := _compound(a, b, one, two):
                compounds.add(compound)
            elif not (
                _joined(a, b, one, two)
                or _phrases(first, b[one[1]], second, b[two[1]])
                or _adverb(asked, stored, first, second)
            ):
                return f"'{first.surface}' and '{second.surface}' stand in another order", compounds
    return None, compounds


def _numeric(*items: Item) -> bool:
    return any(item.word[0] == "#" for item in items)


def _joined(a: tuple[Item, ...], b: tuple[Item, ...], one: Pair, two: Pair) -> bool:
    """'X and Y', 'Y and X': single words, side by side in both."""
    (i, j), (k, m) = one, two
    if k != i + 1 or j != m + 1 or _numeric(a[i], a[k]):
        return False
    joins = {a[k].join, b[j].join}
    return ("" not in joins and len(joins) == 1) or joins <= {"and", "vs"}


def _phrases(a: Item, b: Item, c: Item, d: Item) -> bool:
    """'from A to B', 'to B from A': each keeps its own preposition."""
    return (
        a.preposition == b.preposition
        and c.preposition == d.preposition
        and a.preposition != c.preposition
        and {a.preposition, c.preposition} <= _FREE
        and not any(item.preposition == "to" and item.word in VERBS for item in (a, c))
    )


def _compound(a: tuple[Item, ...], b: tuple[Item, ...], one: Pair, two: Pair) -> Pair | None:
    """'a list in Python' in one and 'a Python list' in the other: returns the pair of 'Python'."""
    for mover, other in ((one, two), (two, one)):
        for x, y, i, j in ((a, b, 0, 1), (b, a, 1, 0)):
            here, there = mover[i], mover[j]
            head = _behind_phrase(x, here, y, there)
            if (
                here < head < len(x)
                and x[head].phrase == x[here].phrase
                and not x[head].join
                and _attached(x[here], y[there])
                and x[here].preposition != y[there].preposition
                and other[j] < there
                and here < other[i]
                and (x[head].word == y[other[j]].word or y[there].preposition == "in")
                and any(item.word == x[head].word for item in y[:there])
                and not _numeric(*x[here : head + 1])
            ):
                return mover
    return None


def _behind_phrase(x: tuple[Item, ...], here: int, y: tuple[Item, ...], there: int) -> int:
    """Where in `x` the words end that are the rest of the phrase at `there`: 'Java string' in
    'Java string length', 'the length of a Java string'. 0 if `x` does not have them in a row."""
    phrase = y[there].phrase
    while there < len(y) and y[there].phrase == phrase:
        if here == len(x) or x[here].word != y[there].word:
            return 0
        here, there = here + 1, there + 1
    return here


def _attached(modifier: Item, behind: Item) -> bool:
    if modifier.nation != behind.nation:
        return behind.preposition == "of"
    named = (
        "c" in (modifier.capital, behind.capital)
        or behind.surface in NAMES
        or not known(behind.surface)
    )
    return behind.preposition in _OF or (behind.preposition in _AT and named)


def _adverb(asked: Parsed, stored: Parsed, *items: Item) -> bool:
    """'quickly learn X', 'learn X quickly', where nothing makes the place of the word matter."""
    if not any(item.surface in ADVERBS or item.surface.endswith("ly") for item in items):
        return False
    return not any(
        item.join or item.negated or item.pause or item.word in SCOPE or item.surface == "only"
        for parsed in (asked, stored)
        for item in parsed.items
    )
