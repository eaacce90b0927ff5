"""Questions for a fact: who, when, where, how many, how tall, why. Mapped together is only what
one answer serves; each rule is attacked in the tests."""

import re

from extproc.cache.semantic.gate.frames.parts import NP, Table
from extproc.cache.semantic.gate.lexicon import VERBS

_AGENT = {
    "author": "wrote", "writer": "wrote", "inventor": "invented", "founder": "founded",
    "painter": "painted", "composer": "composed", "creator": "created",
    "discoverer": "discovered", "designer": "designed", "architect": "designed",
}  # fmt: skip
_AGENTS = "|".join(_AGENT)
_MEASURE = {
    "height": "tall", "elevation": "tall", "length": "long", "duration": "long", "weight": "heavy",
    "depth": "deep", "width": "wide", "age": "old", "size": "big", "speed": "fast",
    "temperature": "hot",
}  # fmt: skip
_MEASURES = "|".join(_MEASURE)


def _agent_of(match: re.Match[str]) -> str:
    return f"who {_AGENT[match[1]]} {match[2]}"


def _agent_behind(match: re.Match[str]) -> str:
    return f"who {_AGENT[match[2]]} {match[1]}"


def _measured(match: re.Match[str]) -> str:
    return f"how {_MEASURE[match[1]]} is {match[2]}"


def _point(match: re.Match[str]) -> str:
    return f"_what is the {match[2].rstrip('e')}ing point of {match[1]}"


def _what_makes(match: re.Match[str]) -> str:
    """'What makes bread rise?' asks why it does; 'what makes dogs happy?' asks for means."""
    return f"why does {match[1]} {match[2]}" if match[2] in VERBS else match[0]


ENTITY: Table = [
    (r"^(?:in )?(?:what|which) year (?=(?:was|did|is|were|does|will)\b)", "_when-year "),
    (r"^(?:on|at|in) ?(?:what|which) (?:exact )?(day|date|time|month) "
     r"(?=(?:was|did|is|were|does|do)\b)", r"_when-\1 "),
    (r"^what is the (?:birthplace|place of birth) of " + NP + "$", r"where was \1 born"),
    (r"^what is " + NP + " 's birthplace$", r"where was \1 born"),
    (r"^what is " + NP + " 's (?:date of birth|birth date|birthdate)$", r"_when-date was \1 born"),
    (r"^what is the (?:date of birth|birth date|birthdate) of (.+)$", r"_when-date was \1 born"),
    (r"^(?:what|which) currency (?:is used|do (?:they|people) use) in (.+)$",
     r"_what is the currency of \1"),
    (r"^(?:what|which) language do (?:they|people) speak in ", "what language is spoken in "),
    (r"^what time (?=(?:does|do|did|is|are|was|were|will|should|can)\b)", "_when-time "),
    (r"^(where (?:is|are|was|were) .+?) (?:located|situated)$", r"\1"),
    (r"^(?:what is|tell|give) the (?:location|whereabouts) of (.+)$", r"where is \1"),
    (r"^who (?:is|was) the (" + _AGENTS + r")s? of (.+)$", _agent_of),
    (r"^who (?:is|was) " + NP + r" 's (" + _AGENTS + ")$", _agent_behind),
    (r"^by whom (?:was|were) " + NP + r" ([a-z]+)$", r"who \2 \1"),
    (r"^who (?:was|were) " + NP + r" ([a-z]+(?:ed|en|own|wn)) by$", r"who \2 \1"),
    (r"^which ([a-z]+) is the ((?:#o\d+ )?[a-z]+est)( .+)?$", r"_what is the \2 \1\3"),
    (r"^(_?(?:what|which|who) .*\b(?:#o\d+ )?(?:[a-z]+est|most [a-z]+)\b.*) "
     r"(?:in the (?:whole |entire )?world|on (?:planet )?earth)$", r"\1"),
    (r"^(?:what|which) (?:city|town|place) is the capital\b", "_what is the capital"),
    (r"^at (?:what|which) temperature does " + NP + " (boil|melt|freeze)s?$",
     _point),
]  # fmt: skip
AMOUNT: Table = [
    (r"^(?:what is|tell|give|state) the (?:total )?number of ", "how many "),
    (r"^how many people (?:live|are living) in (.+)$",
     r"_what is the population of \1"),
    (r"^(?:what is|tell|give) the (?:price|cost) of (.+)$", r"how much does \1 cost"),
    (r"^what (?:does|do|did) " + NP + " cost$", r"how much does \1 cost"),
    (r"^how much (?:is|are) (the |a |an )(?!#)(.+)$", r"how much does \1\2 cost"),
    (r"^what is the (" + _MEASURES + r") of (.+)$", _measured),
    (r"^how high (?=is |are )", "how tall "),
    (r"^how fast (?:does|do) " + NP + "(?: travel| move)$", r"how fast is \1"),
    (r"^how much (?:does|do) " + NP + " weigh$", r"how heavy is \1"),
    (r"^(?:for how long|how much time) ", "how long "),
    (r"^how frequently ", "how often "),
    (r"^(?:what is the distance (?:between|from)|how far is it from) " + NP + " (?:to|and) " + NP
     + "$", r"_far \1 and \2"),
    (r"^how far (?:is|are) " + NP + " from " + NP + "$", r"_far \1 and \2"),
    (r"^#(\S+ \S+) is how many (\S+)$", r"how many \2 are in #\1"),
    (r"^how many " + NP + " (?:do|does) " + NP + " have$", r"how many \1 have-in \2"),
    (r"^how many " + NP + " are there$", r"how many \1"),
    (r"^how many " + NP + r" (?:are there|are|is there|is) "
     r"(?:in the world|in the whole world|on earth)$", r"how many \1"),
    (r"^how many " + NP + r" (?:are there|are|is there|is) (in|on|inside) (.+)$",
     r"how many \1 \2 \3"),
    (r"^(how many [a-z]+) on earth$", r"\1"),
]  # fmt: skip
REASON: Table = [
    (r"^(?:what is|what are|explain|tell|give|state) the reasons?(?: that| why| for why)? "
     r"(?!for |of |behind )", "why "),
    (r"^(?:for what reason|how come) ", "why "),
    (r"^what (?:causes|cause) ", "why "),
    (r"^what caused ", "why did "),
    (r"^what makes " + NP + " ([a-z]+)$", _what_makes),
    (r"^(why (?:do |does |did )?.+?) (?:form|occur|happen|arise)$", r"\1"),
]  # fmt: skip
