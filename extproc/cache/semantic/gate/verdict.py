"""Whether two parsed texts ask the same. Fail-closed: a hit needs every word of both sides explained,
used alike and in an order that says the same; the first doubt is the answer."""

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
    why = first_veto(asked, stored)
    if why is None:
        why = _word_by_word(asked, stored, match(asked.items, stored.items))
    return Verdict(False, why) if why else Verdict(True, "every word of both is explained")


def _word_by_word(asked: Parsed, stored: Parsed, matched: Matched) -> str | None:
    if why := _unexplained(asked, stored, matched):
        return why
    why, compounds = moved(asked, stored, matched.pairs)
    if why:
        return why
    for i, j in matched.pairs:
        if why := disagreement(asked, stored, i, j, (i, j) in compounds):
            return why
    return _negation_moved(asked, stored, matched) or _pauses(asked, stored, matched)


def _unexplained(asked: Parsed, stored: Parsed, matched: Matched) -> str | None:
    if matched.left:
        word = asked.items[matched.left[0]].surface
        return f"'{word}' of the asked text is explained by no word of the stored one"
    if matched.right:
        word = stored.items[matched.right[0]].surface
        return f"'{word}' of the stored text is explained by no word of the asked one"
    return None


def _negation_moved(asked: Parsed, stored: Parsed, matched: Matched) -> str | None:
    """'Why does X not Y' is 'why doesn't X Y', unless a word stands by to which the 'not' may belong."""
    if all(asked.items[i].negated == stored.items[j].negated for i, j in matched.pairs):
        return None
    items = asked.items + stored.items
    if (
        asked.question in ("howto", "do")
        or sum(item.negated for item in items) > 2
        or any(item.join or item.pause or item.word in SCOPE for item in items)
        or any(item.preposition == "to" and item.word in VERBS for item in items)
    ):
        return "'not' applies to different words"
    return None


def _pauses(asked: Parsed, stored: Parsed, matched: Matched) -> str | None:
    for i, j in matched.pairs:
        a, b = asked.items[i], stored.items[j]
        if a.pause != b.pause and i and j and not (a.join or b.join):
            return f"before '{a.surface}' only one has a comma or a new sentence"
    return None
