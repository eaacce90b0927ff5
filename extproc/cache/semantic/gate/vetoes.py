"""Facts that must be equal before any word is looked at: class, numbers, payloads, negation,
tense.

Each veto is a function of the two sides that returns a sentence, or None. None ever says yes.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from extproc.cache.semantic.gate.grammar import MODAL
from extproc.cache.semantic.gate.parsed import Item, Parsed

Veto = Callable[[Parsed, Parsed], str | None]

_NAMES = {
    "howto": "how to do something",
    "yn": "yes or no",
    "do": "a task",
    "rec": "a recommendation",
    "list": "a list",
    "diff": "a difference",
    "mean": "a meaning",
    "for": "a purpose",
    "far": "a distance",
    "standfor": "what letters stand for",
}

CAN = {MODAL["_can-ok"], MODAL["_can-possible"]}
_GENERIC = frozenset(("i", "you", "we", "one"))


def first_veto(asked: Parsed, stored: Parsed) -> str | None:
    return next((why for veto in VETOES if (why := veto(asked, stored))), None)


def _differ(what: str, one: Iterable[str], other: Iterable[str]) -> str | None:
    a, b = Counter(one), Counter(other)
    if a == b:
        return None
    left, right = sorted((a - b).elements()), sorted((b - a).elements())
    return f"the {what} differ: {', '.join(left) or 'none'} and {', '.join(right) or 'none'}"


def question_class(asked: Parsed, stored: Parsed) -> str | None:
    if asked.question == stored.question:
        return None
    if _kin(asked, stored):
        return None
    one, other = (_NAMES.get(q, f"'{q}'") for q in (asked.question, stored.question))
    return f"one asks for {one}, the other for {other}"


def _kin(asked: Parsed, stored: Parsed) -> bool:
    """Classes that ask the same under a condition."""
    classes = {asked.question, stored.question}
    first = (asked.items[0], stored.items[0])
    if classes == {"what", "mean"}:  # "what is (an) API", "what does API mean"
        return _bare(asked) and _bare(stored)
    if classes == {"what", "list"}:  # "what are the planets", "list the planets"
        return all(item.determiner == "the" for item in first) and _many(asked) and _many(stored)
    return "when" in classes and bool(classes & {"when-year", "when-time", "when-date"})


def _bare(parsed: Parsed) -> bool:
    """A term and nothing more. The meaning of a red light is not what a red light is."""
    first, *more = parsed.items
    if not more:
        return first.determiner != "the"
    return len(more) <= 2 and not any(
        item.determiner or item.preposition or item.phrase != first.phrase for item in parsed.items
    )


def _many(parsed: Parsed) -> bool:
    phrase = parsed.items[0].phrase
    return [item for item in parsed.items if item.phrase == phrase][-1].plural


def payloads(asked: Parsed, stored: Parsed) -> str | None:
    if asked.payloads == stored.payloads:
        return None
    return "what they quote differs, and quoted text must be equal to the letter"


def numbers(asked: Parsed, stored: Parsed) -> str | None:
    return _differ("numbers", _starting("#", asked), _starting("#", stored))


def _starting(mark: str, parsed: Parsed) -> list[str]:
    return [item.word[1:] for item in parsed.items if item.word[0] == mark]


def literals(asked: Parsed, stored: Parsed) -> str | None:
    return _differ("symbols or code", _starting("=", asked), _starting("=", stored))


def tense(asked: Parsed, stored: Parsed) -> str | None:
    if asked.tense != stored.tense or asked.perfect != stored.perfect:
        one, other = (p.tense or ("perfect" if p.perfect else "present") for p in (asked, stored))
        return f"the tenses differ: {one} and {other}"
    return None


def modality(asked: Parsed, stored: Parsed) -> str | None:
    modals = asked.modals | stored.modals
    long = len(asked.items) > 1  # "can you drive" may be meant for the model itself
    if "can" in asked.modals ^ stored.modals and len(modals) == 2 and modals & CAN and long:
        return None  # "is it possible to" and "is it ok to" are both asked by "can you"
    return _differ("modal verbs", asked.modals, stored.modals)


def person(asked: Parsed, stored: Parsed) -> str | None:
    one, other = asked.person, stored.person
    unsaid = asked if not one else stored
    if one == other or ("" in (one, other) and unsaid.passive):
        return None  # "can it be bought" names nobody
    if asked.modals and "yn" not in (asked.question, stored.question) and {one, other} <= _GENERIC:
        return None
    return f"one asks about '{one}', the other about '{other}'"


def negation(asked: Parsed, stored: Parsed) -> str | None:
    one, other = (sum(item.negated for item in p.items) for p in (asked, stored))
    if one == other:
        return None
    return f"one says 'not' {_times(one)}, the other {_times(other)}"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def joins(asked: Parsed, stored: Parsed) -> str | None:
    return _differ("words 'and', 'or', 'vs'", _joins(asked.items), _joins(stored.items))


def _joins(items: Iterable[Item]) -> list[str]:
    return [item.join for item in items if item.join]


def auxiliary(asked: Parsed, stored: Parsed) -> str | None:
    """'Who is this' and 'who does this' differ by nothing else."""
    kinds = {asked.auxiliary, stored.auxiliary}
    if kinds == {"be", "do"} and not (asked.passive or stored.passive):
        return "one asks what is, the other what is done"
    return None


VETOES: tuple[Veto, ...] = (
    payloads,
    numbers,
    literals,
    question_class,
    negation,
    modality,
    tense,
    person,
    joins,
    auxiliary,
)
