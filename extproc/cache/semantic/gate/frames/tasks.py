"""How-to questions, comparisons, and what is possible. Mapped together is only what one answer
serves; each rule is attacked in the tests."""

import re

from extproc.cache.semantic.gate.frames.parts import NP, Table
from extproc.cache.semantic.gate.words import base

_ONE = r"(?:i|we|you|one|someone|somebody|anyone|people|a person)"
_WAY = (
    r"(?:best |good |right |proper |correct |easiest |simplest |easy |simple |recommended |usual )?"
    r"(?:ways?|methods?|steps?|approach|approaches|procedure|process|technique)"
)
# "How do you store my data?" asks for no instruction.
_NOT_OURS = r"(?!.*\b(?:my|me|us|our|like|feel|think)\b)"


def _do_it(match: re.Match[str]) -> str:
    """The verb in its base form, before what is done to it: 'how should salmon be baked'."""
    return f"_howto {base(match[2])} {match[1]}"


def _safely(match: re.Match[str]) -> str:
    return f"is it safe to {base(match[2])} {match[1]}"


def _when_you(match: re.Match[str]) -> str:
    return f"what happens when you {base(match[3])} {match[1]} and {match[2]}"


HOW_TO: Table = [
    (r"^(?:i (?:want|need|would like|am trying) to )(.+?) [|;] (?:so )?"
     r"how (?:do|can|should|would) i (?:do (?:that|this|so|it)|go about (?:it|that|this))$",
     r"_howto \1"),
    (r"^how (?:do|can|should|could|would) you " + _NOT_OURS + r"(?:best |go about )?(?=\S)",
     "_howto "),
    (r"^how (?:do|can|should|could|would|might|to) (?!you )" + _ONE
     + r" (?:best |go about |possibly )?(?=\S)", "_howto "),
    (r"^how does one (?:go about )?", "_howto "),
    (r"^(?:explain |show |teach |tell |describe |show me |teach me )?how to ", "_howto "),
    (r"^(?:(?:what|which) (?:is|are|would be) |is there |are there |give |list |share |tell "
     r"|suggest |show |describe |explain |recommend |i need |i want )?"
     r"(?:(?:a|an|the|some|any|your|one|a-few|few) )?" + _WAY
     + r" (?:to|of(?= [a-z]+ing )|i can) (?=\S)", "_howto "),
    (r"^what (?:can|should|could|must|do|would) " + _ONE + r" (?:must )?do (?:in order )?to (?=\S)",
     "_howto "),
    (r"^(?:(?:give|write|share|provide|find|show|i need|i want|what is|tell) )?"
     r"(?:(?:a|an|the|your|some) )?(?:good |best |simple |easy )?recipe (?:for|to make) (?=\S)",
     "_howto make "),
    (r"^(?:give|share|provide|find|show|i need|i want) (?:a|an|the) (?:good |simple |easy )?"
     + NP + " recipe$", r"_howto make \1"),
    (r"^(?:i need |can i get )?(?:some )?(?:help|instructions|guidance|guide|advice) "
     r"(?:with |on |for )?(?=[a-z]{3,}ing )", "_howto "),
    (r"^(?:i need (?:some )?)?(?:help|assist)(?: me)? (?:to )?"
     r"(?!with |on |for |me |in |write |draft |translate |summarize |rewrite |create |design |plan "
     r"|find |choose |decide |compose |generate |understand )(?=[a-z]+ )", "_howto "),
    (r"^(?:instructions|steps|a guide|guide|give instructions) (?:to|for|on how to|on) (?=\S)",
     "_howto "),
    (r"^how (?:should|can|could|must|to) " + NP + r" be ([a-z]+)(?= |$)(?!.* by )",
     _do_it),
    (r"^what is (?:the )?(?:fastest|quickest) way to (.+)$", r"_howto \1 fast"),
    (r"^_howto get (?=the (?:length|size|number|value|sum|average|index|type) )", "_howto find "),
    (r"^_howto become fluent in (.+)$", r"_howto speak \1 fluently"),
    (r"^_howto improve (?:my |your )?(sleep|sleeping)$", r"_howto sleep better"),
    (r"^_howto not (?=\S)", "_howto ^not "),
]  # fmt: skip
COMPARE: Table = [
    (r"^" + NP + r" (?:vs|versus|or) " + NP + r" [;|] what (?:is|are) the differences?$",
     r"_diff \1 and \2"),
    (r"^(?:(?:what (?:is|are)|explain|tell|describe|give) )?(?:the )?(?:main |key )?"
     r"differences? between ", "_diff "),
    (r"^how (?:does|do|is|are) " + NP + " (?:differ|different) from (?!each|one)",
     r"_diff \1 and "),
    (r"^how (?:do|are) " + NP + " and " + NP + " (?:differ|different)(?: from each other)?$",
     r"_diff \1 and \2"),
]  # fmt: skip
POSSIBLE: Table = [
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
    (r"^can " + NP + r" be ([a-z]+) safely$", _safely),
    (r"^is " + NP + r" safe to ([a-z]+)$", r"is it safe to \2 \1"),
    (r"^(?:is|are) " + NP + " (?:edible|safe to eat)$", r"can you eat \1"),
    (r"^is (?:drinking |eating )?" + NP + r" (bad|good) for (?:your|my|one 's|the|our) health$",
     r"is \1 \2 for you"),
    (r"^what happens (?:when|if) " + NP + r" and " + NP + r" are (mixed|combined)$",
     _when_you),
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
