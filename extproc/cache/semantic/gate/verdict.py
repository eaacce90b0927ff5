"""Whether two parsed texts ask the same. Fail-closed: a hit needs every word of both sides
explained, used alike and in an order that says the same; the first doubt is the answer."""

from extproc.cache.semantic.gate.agreement import disagreement
from extproc.cache.semantic.gate.grammar import SCOPE
from extproc.cache.semantic.gate.lexicon import VERBS
from extproc.cache.semantic.gate.match import Matched, match
from extproc.cache.semantic.gate.order import moved
from extproc.cache.semantic.gate.parsed import Parsed, Verdict
from extproc.cache.semantic.gate.vetoes import first_veto


def same_question(asked: Parsed, stored: Parsed) -> Verdict:
    """Whether the answer to `stored` answers `asked`, and a sentence that says why."""
    if asked.text == stored.text:
        return Verdict(True, "the texts are equal")
    # Always in the same order: which of the two was asked must not matter.
    one, other = sorted((asked, stored), key=lambda parsed: parsed.text)
    why = first_veto(one, other)
    if why is None:
        why = _word_by_word(one, other, match(one.items, other.items))
    return Verdict(False, why) if why else Verdict(True, "every word of both is explained")


def _word_by_word(one: Parsed, other: Parsed, matched: Matched) -> str | None:
    if why := _unexplained(one, other, matched):
        return why
    why, compounds = moved(one, other, matched.pairs)
    if why:
        return why
    for i, j in matched.pairs:
        if why := disagreement(one, other, i, j, (i, j) in compounds):
            return why
    return _negation_moved(one, other, matched) or _pauses(one, other, matched)


def _unexplained(one: Parsed, other: Parsed, matched: Matched) -> str | None:
    if matched.left:
        word = one.items[matched.left[0]].surface
        return f"'{word}' in one is explained by no word of the other"
    if matched.right:
        word = other.items[matched.right[0]].surface
        return f"'{word}' in one is explained by no word of the other"
    return None


def _negation_moved(one: Parsed, other: Parsed, matched: Matched) -> str | None:
    """'Why does X not Y' is 'why doesn't X Y', unless a word stands by to which the 'not' may
    belong."""
    if all(one.items[i].negated == other.items[j].negated for i, j in matched.pairs):
        return None
    items = one.items + other.items
    if (
        one.question in ("howto", "do")
        or sum(item.negated for item in items) > 2
        or any(item.join or item.pause or item.word in SCOPE for item in items)
        or any(item.preposition == "to" and item.word in VERBS for item in items)
    ):
        return "'not' applies to different words"
    return None


def _pauses(one: Parsed, other: Parsed, matched: Matched) -> str | None:
    for i, j in matched.pairs:
        a, b = one.items[i], other.items[j]
        if a.pause != b.pause and i and j and not (a.join or b.join):
            return f"before '{a.surface}' only one has a comma or a new sentence"
    return None
