"""The many ways to ask one question, each to one writing that begins with its class: "_howto", "_what",
"_list". Each rule needs pairs in the tests that attack it: what it maps together must have one answer.

It works on words in small letters with one space between; NP is up to ten words without a comma.
"""

import re

from extproc.cache.semantic.gate.lexicon import VERBS
from extproc.cache.semantic.gate.words import base

NP = r"([^ ;|]+(?: [^ ;|]+){0,9}?)"
_ONE = r"(?:i|we|you|one|someone|somebody|anyone|people|a person)"
_WAY = (
    r"(?:best |good |right |proper |correct |easiest |simplest |easy |simple |recommended |usual )?"
    r"(?:ways?|methods?|steps?|approach|approaches|procedure|process|technique)"
)
_AGENT = {
    "author": "wrote", "writer": "wrote", "inventor": "invented", "founder": "founded",
    "director": "directed", "painter": "painted", "composer": "composed", "creator": "created",
    "discoverer": "discovered", "designer": "designed", "architect": "designed",
}  # fmt: skip
_AGENTS = "|".join(_AGENT)
_MEASURE = {
    "height": "tall", "elevation": "tall", "length": "long", "duration": "long", "weight": "heavy",
    "depth": "deep", "width": "wide", "age": "old", "size": "big", "speed": "fast", "temperature": "hot",
}  # fmt: skip
_MEASURES = "|".join(_MEASURE)

_HOW_TO = [
    (r"^(?:i (?:want|need|would like|am trying) to )(.+?) [|;] (?:so )?how (?:do|can|should|would) i "
     r"(?:do (?:that|this|so|it)|go about (?:it|that|this))$", r"_howto \1"),
    # "How do you store my data?" asks for no instruction; "your" of a general "you" is "my".
    (r"^how (?:do|can|should|could|would) you (?!.*\b(?:my|me|us|our|like|feel|think)\b)(.+? )your\b",
     r"_howto \1my"),
    (r"^how (?:do|can|should|could|would|might|to) (?!you .*\b(?:my|me|us|our|like|feel|think)\b)" + _ONE + r" (?:best |go about |possibly )?(?=\S)",
     "_howto "),
    (r"^how does one (?:go about )?", "_howto "),
    (r"^(?:explain |show |teach |tell |describe |show me |teach me )?how to ", "_howto "),
    (r"^(?:(?:what|which) (?:is|are|would be) |is there |are there |give |list |share |tell |suggest |show "
     r"|describe |explain |recommend |i need |i want )?"
     r"(?:(?:a|an|the|some|any|your|one|a-few|few) )?" + _WAY + r" (?:to|of(?= [a-z]+ing )|i can) (?=\S)", "_howto "),
    (r"^what (?:can|should|could|must|do|would) " + _ONE + r" (?:must )?do (?:in order )?to (?=\S)",
     "_howto "),
    (r"^(?:(?:give|write|share|provide|find|show|i need|i want|what is|tell) )?(?:(?:a|an|the|your|some) )?"
     r"(?:good |best |simple |easy )?recipe (?:for|to make) (?=\S)", "_howto make "),
    (r"^(?:give|share|provide|find|show|i need|i want) (?:a|an|the) (?:good |simple |easy )?"
     + NP + " recipe$", r"_howto make \1"),
    (r"^(?:i need |can i get )?(?:some )?(?:help|instructions|guidance|guide|advice) "
     r"(?:with |on |for )?(?=[a-z]{3,}ing )", "_howto "),
    (r"^(?:i need (?:some )?)?(?:help|assist)(?: me)? (?:to )?"
     r"(?!with |on |for |me |in |write |draft |translate |summarize |rewrite |create |design |plan |find "
     r"|choose |decide |compose |generate |understand )(?=[a-z]+ )",
     "_howto "),
    (r"^(?:instructions|steps|a guide|guide|give instructions) (?:to|for|on how to|on) (?=\S)", "_howto "),
    (r"^how (?:should|can|could|must|to) " + NP + r" be ([a-z]+)(?= |$)(?!.* by )",
     lambda m: f"_howto {base(m[2])} {m[1]}"),
    (r"^what is (?:the )?(?:fastest|quickest) way to (.+)$", r"_howto \1 fast"),
    (r"^_howto get (?=the (?:length|size|number|value|sum|average|index|type) )", "_howto find "),
    (r"^_howto become fluent in (.+)$", r"_howto speak \1 fluently"),
    (r"^_howto improve (?:my |your )?(sleep|sleeping)$", r"_howto sleep better"),
    (r"^_howto not (?=\S)", "_howto ^not "),
]  # fmt: skip
_ENTITY = [
    (r"^(?:in )?(?:what|which) year (?=(?:was|did|is|were|does|will)\b)", "_when-year "),
    (r"^(?:on|at|in) ?(?:what|which) (?:exact )?(day|date|time|month) (?=(?:was|did|is|were|does|do)\b)",
     r"_when-\1 "),
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
    (r"^who (?:is|was) the (" + _AGENTS + r")s? of (.+)$", lambda m: f"who {_AGENT[m[1]]} {m[2]}"),
    (r"^who (?:is|was) " + NP + r" 's (" + _AGENTS + ")$", lambda m: f"who {_AGENT[m[2]]} {m[1]}"),
    (r"^by whom (?:was|were) " + NP + r" ([a-z]+)$", r"who \2 \1"),
    (r"^who (?:was|were) " + NP + r" ([a-z]+(?:ed|en|own|wn)) by$", r"who \2 \1"),
    (r"^which ([a-z]+) is the ((?:#o\d+ )?[a-z]+est)( .+)?$", r"_what is the \2 \1\3"),
    (r"^(_?(?:what|which|who) .*\b(?:#o\d+ )?(?:[a-z]+est|most [a-z]+)\b.*) "
     r"(?:in the (?:whole |entire )?world|on (?:planet )?earth)$", r"\1"),
    (r"^(?:what|which) (?:city|town|place) is the capital\b", "_what is the capital"),
    (r"^at (?:what|which) temperature does " + NP + " (boil|melt|freeze)s?$",
     lambda m: f"_what is the {m[2].rstrip('e')}ing point of {m[1]}"),
]  # fmt: skip
_AMOUNT = [
    (r"^(?:what is|tell|give|state) the (?:total )?number of ", "how many "),
    (r"^how many people (?:live|are|are living|are there) in (.+)$", r"_what is the population of \1"),
    (r"^(?:what is|tell|give) the (?:price|cost) of (.+)$", r"how much does \1 cost"),
    (r"^what (?:does|do|did) " + NP + " cost$", r"how much does \1 cost"),
    (r"^how much (?:is|are) (the |a |an )(?!#)(.+)$", r"how much does \1\2 cost"),
    (r"^what is the (" + _MEASURES + r") of (.+)$", lambda m: f"how {_MEASURE[m[1]]} is {m[2]}"),
    (r"^how high (?=is |are )", "how tall "),
    (r"^how fast (?:does|do) " + NP + "(?: travel| move)$", r"how fast is \1"),
    (r"^how much (?:does|do) " + NP + " weigh$", r"how heavy is \1"),
    (r"^(?:for how long|how much time) ", "how long "),
    (r"^how frequently ", "how often "),
    (r"^(?:what is the distance (?:between|from)|how far is it from) " + NP + " (?:to|and) " + NP + "$",
     r"_far \1 and \2"),
    (r"^how far (?:is|are) " + NP + " from " + NP + "$", r"_far \1 and \2"),
    (r"^#(\S+ \S+) is how many (\S+)$", r"how many \2 are in #\1"),
    (r"^how many " + NP + " (?:do|does) " + NP + " have$", r"how many \1 have-in \2"),
    (r"^how many " + NP + " are there$", r"how many \1"),
    (r"^how many " + NP + r" (?:are there|are|is there|is) (in|on) (?:earth|the world|the whole world)$",
     r"how many \1"),
    (r"^how many " + NP + r" (?:are there|are|is there|is) (in|on|inside) (.+)$", r"how many \1 \2 \3"),
    (r"^(how many [a-z]+) on earth$", r"\1"),
]  # fmt: skip


def _what_makes(match: re.Match[str]) -> str:
    """'What makes bread rise?' asks why it does; 'what makes dogs happy?' asks for means."""
    return f"why does {match[1]} {match[2]}" if match[2] in VERBS else match[0]


_REASON = [
    (r"^(?:what is|what are|explain|tell|give|state) the reasons?(?: that| why| for why)? (?!for |of |behind )",
     "why "),
    (r"^(?:for what reason|how come) ", "why "),
    (r"^what (?:causes|cause) ", "why "),
    (r"^what caused ", "why did "),
    (r"^what makes " + NP + " ([a-z]+)$", _what_makes),
    (r"^(why (?:do |does |did )?.+?) (?:form|occur|happen|arise)$", r"\1"),
]  # fmt: skip
_COMPARE = [
    (r"^" + NP + r" (?:vs|versus|or) " + NP + r" [;|] what (?:is|are) the differences?$",
     r"_diff \1 and \2"),
    (r"^(?:(?:what (?:is|are)|explain|tell|describe|give) )?(?:the )?(?:main |key )?differences? between ",
     "_diff "),
    (r"^how (?:does|do|is|are) " + NP + " (?:differ|different) from (?!each|one)", r"_diff \1 and "),
    (r"^how (?:do|are) " + NP + " and " + NP + " (?:differ|different)(?: from each other)?$",
     r"_diff \1 and \2"),
]  # fmt: skip
_POSSIBLE = [
    (r"^is it (?:ok|okay|alright|fine) for " + NP + " to ", r"_can-ok \1 "),
    (r"^is it (?:ok|okay|alright|fine) (?:if you|if i|to) ", "_can-ok you "),
    (r"^is it possible for " + NP + " to ", r"_can-possible \1 "),
    (r"^is it possible to ", "_can-possible you "),
    (r"^is it impossible to ", "can you not "),
    (r"^why is it impossible to ", "why can you not "),
    (r"^(is|are) " + NP + " unable to ", r"can \2 not "),
    (r"^(is|are|am) " + NP + " able to ", r"can \2 "),
    (r"\b(is|are) unable to\b", "can not"),
    (r"\b(is|are|am) able to\b", "can"),
    (r"^can " + NP + r" be ([a-z]+) safely$", lambda m: f"is it safe to {base(m[2])} {m[1]}"),
    (r"^is " + NP + r" safe to ([a-z]+)$", r"is it safe to \2 \1"),
    (r"^(?:is|are) " + NP + " (?:edible|safe to eat)$", r"can you eat \1"),
    (r"^is (?:drinking |eating )?" + NP + r" (bad|good) for (?:your|my|one 's|the|our) health$",
     r"is \1 \2 for you"),
    (r"^what happens (?:when|if) " + NP + r" and " + NP + r" are (mixed|combined)$",
     lambda m: f"what happens when you {base(m[3])} {m[1]} and {m[2]}"),
    (r"\b(mix|combine|blend|mixing|combining) ([a-z]+) with ([a-z]+)", r"\1 \2 and \3"),
    (r"^what effects? (?:does|do) " + NP + " have on ", r"how does \1 affect "),
    (r"^what (?:is|are) the effects? of " + NP + " on ", r"how does \1 affect "),
    (r"^(is|are|do|does|did|was|were|can|could|will|would|should|has|have) n't ", r"\1 "),
    (r"^is " + NP + r" slower than " + NP + "$", r"is \2 faster than \1"),
    (r"^is " + NP + r" smaller than " + NP + "$", r"is \2 bigger than \1"),
    (r"^is " + NP + r" (?:worse|less good) than " + NP + "$", r"is \2 better than \1"),
    (r"^is " + NP + r" lighter than " + NP + "$", r"is \2 heavier than \1"),
    (r"^is " + NP + r" shorter than " + NP + "$", r"is \2 taller than \1"),
    (r"^is " + NP + r" younger than " + NP + "$", r"is \2 older than \1"),
    (r"^is " + NP + r" cheaper than " + NP + "$", r"is \2 more expensive than \1"),
]  # fmt: skip
_WHAT = [
    (r"^what does " + NP + " stand for$", r"_standfor \1"),
    (r"^what is " + NP + " (?:short|an abbreviation|an acronym) for$", r"_standfor \1"),
    (r"^(?:what is|give|tell|state) the (?:full form|expansion|full name) of (\S+)$", r"_standfor \1"),
    (r"^what (?:is|are) " + NP + " (?:used )?for$", r"_for \1"),
    (r"^what (?:is|are) the (?:purpose|use|uses|function) of (.+)$", r"_for \1"),
    (r"^(?:what is|explain|describe) the (?:working principle|mechanism) (?:of|behind) (.+)$",
     r"how does \1 work"),
    (r"^(?:what is|tell|give|state|explain|provide)(?: me)? (?:the |a )?(?:meaning|definition) of (.+)$",
     r"_mean \1"),
    (r"^define (.+)$", r"_mean \1"),
    (r"^what (?:does|do) " + NP + " mean$", r"_mean \1"),
    (r"^what (?:do (?:you|people|we|they)|does one) mean by (.+)$", r"_mean \1"),
    (r"^what is meant by (.+)$", r"_mean \1"),
    (r"^(what|who|how|where|when|why) exactly ", r"\1 "),
    (r"^(what|who) (is|are) exactly ", r"\1 \2 "),
    (r"^(?:tell about|tell more about|what can you tell(?: me)? about|talk about) (.+)$", r"_what \1"),
    (r"^(?:give|provide|write)(?: me)? (?:an |a )?(?:brief |short )?(?:overview|introduction|description"
     r"|explanation) (?:of|to) (.+)$", r"_what \1"),
    (r"^(?:give|provide)(?: me)? (?:some )?information (?:on|about) (.+)$", r"_what \1"),
    (r"^(?:explain|describe) what (.+?) (?:is|are|means?)$", r"_what is \1"),
    (r"^(?:explain|describe) (?!what|whether|if|to |a |an |my |your |this |that |how |why )(.+)$",
     r"_what is \1"),
    (r"^(?:explain|clarify) (?=what )", ""),
    (r"^(?:tell|give|state|name) (the (?!#|top |names?|main |most |best )[a-z]+ of .+)$", r"_what is \1"),
    (r"^what " + NP + r" (?:does|do) " + NP + " have$", r"_what is the \1 of \2"),
    (r"^(?:give|write|provide|make|create) (?:a |the )?summary of ", "summarize "),
    (r"^(?:write|give|make) (?:a|an) (?=(?:summary|translation)\b)", "write a "),
    (r"\b(check)s? (?:whether|if) ", r"\1 "),
    (r"\b(program|function|script|query|method|class|macro|regex|command) (?:that|which) (?:can )?([a-z]+)",
     lambda m: f"{m[1]} to {base(m[2])}"),
    (r"\b(_howto make|to make) (an?) ", r"_howto create \2 "),
]  # fmt: skip
_LISTS = [
    (r"^(?:what|which) are (?:some|some of the|a-few|several|examples of) ",
     "_list "),
    (r"^(?:list|name|enumerate|give|tell|state|mention)(?: me)? (?:some |a-few )(?:of the )?", "_list "),
    (r"^(?:list|name|enumerate|give|state|mention|show)(?: me)? (?!me\b)", "_list "),
    (r"^(?:recommend|suggest) (?:some |a-few )?(?:good )?", "_rec "),
    (r"^what (?:is|are|would be) (a |an |some )?good (?!way|time)", r"_rec \1"),
]  # fmt: skip

# Dummy words: "In Python, how do I X?" says the same as "How do I X in Python?".
_FRONTED = [(r"^in ([^ ;|]+(?: [^ ;|]+)?) ; (.+)$", r"\2 in \1")]


def _compile(table: list[tuple[str, object]]) -> list[tuple[re.Pattern[str], object]]:
    return [(re.compile(pattern), new) for pattern, new in table]


_TABLES = [
    _compile(table)  # type: ignore[arg-type]
    for table in (_FRONTED, _COMPARE, _HOW_TO, _POSSIBLE, _ENTITY, _AMOUNT, _REASON, _WHAT, _LISTS)
]


def frame(words: str) -> str:
    for table in _TABLES:
        for rule, new in table:
            words = rule.sub(new, words, count=1)  # type: ignore[arg-type]
    return words
