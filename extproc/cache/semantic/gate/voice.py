"""The passive, turned to the active's order of words: "where can salmon be bought" says the same
as "where can I buy salmon". It must never turn a sentence whose subject it cannot see."""

from extproc.cache.semantic.gate.grammar import CLAUSE
from extproc.cache.semantic.gate.lexicon import PARTICIPLES, PAST
from extproc.cache.semantic.gate.parsed import Item
from extproc.cache.semantic.gate.words import base


def is_participle(word: str) -> bool:
    return word in PARTICIPLES or (word.endswith("ed") and base(word) != word)


def is_past(word: str) -> bool:
    return word in PAST or (is_participle(word) and base(word) != word)


def turn(items: list[Item]) -> int:
    """Puts the passive verb that stands last before its subject; returns its new place. A verb
    without a subject to be seen stays and is marked, so that "who was elected" is not "who
    elected"."""
    verb = items.pop()._replace(determiner="", preposition="")  # those were its subject's
    start = _subject_start(items)
    items.insert(start, verb._replace(passive=start == len(items)))
    return start


def _subject_start(items: list[Item]) -> int:
    start = len(items)
    while start and not (start < len(items) and items[start].pause):
        if items[start - 1].word in CLAUSE:
            break
        start -= 1
        if items[start].join:
            return len(items)
    return start


def agent_first(items: list[Item], verb: int) -> list[Item]:
    """'paint Guernica by Picasso', of a passive -> 'Picasso paint Guernica'."""
    agent = [i for i in range(verb + 1, len(items)) if items[i].preposition == "by"]
    if not agent or any(items[i].join or items[i].pause for i in agent):
        return items
    doer = [items[i]._replace(preposition="") for i in agent]
    behind = [items[i] for i in range(verb + 1, len(items)) if i not in agent]
    return [*items[:verb], *doer, items[verb]._replace(passive=False), *behind]
