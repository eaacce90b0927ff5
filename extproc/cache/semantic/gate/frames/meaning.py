"""Questions for a meaning, a purpose, a list or a recommendation. Mapped together is only what one
answer serves; each rule is attacked in the tests."""

import re

from extproc.cache.semantic.gate.frames.parts import NP, Table
from extproc.cache.semantic.gate.words import base


def _made_to(match: re.Match[str]) -> str:
    """'a program that reverses', 'a program to reverse'."""
    return f"{match[1]} to {base(match[2])}"


WHAT: Table = [
    (r"^what does " + NP + " stand for$", r"_standfor \1"),
    (r"^what is " + NP + " (?:short|an abbreviation|an acronym) for$", r"_standfor \1"),
    (r"^(?:what is|give|tell|state) the (?:full form|expansion|full name) of (\S+)$",
     r"_standfor \1"),
    (r"^what (?:is|are) " + NP + " (?:used )?for$", r"_for \1"),
    (r"^what (?:is|are) the (?:purpose|use|uses|function) of (.+)$", r"_for \1"),
    (r"^(?:what is|explain|describe) the (?:working principle|mechanism) (?:of|behind) (.+)$",
     r"how does \1 work"),
    (r"^(?:what is|tell|give|state|explain|provide)(?: me)? (?:the |a )?"
     r"(?:meaning|definition) of (.+)$", r"_mean \1"),
    (r"^define (.+)$", r"_mean \1"),
    (r"^what (?:does|do) " + NP + " mean$", r"_mean \1"),
    (r"^what (?:do (?:you|people|we|they)|does one) mean by (.+)$", r"_mean \1"),
    (r"^what is meant by (.+)$", r"_mean \1"),
    (r"^(what|who|how|where|when|why) exactly ", r"\1 "),
    (r"^(what|who) (is|are) exactly ", r"\1 \2 "),
    (r"^(?:tell about|tell more about|what can you tell(?: me)? about|talk about) "
     r"(?!you|me\b|my\b|us\b|our\b|him|her|them|it\b|this|that)" + NP + "$", r"_what \1"),
    (r"^(?:give|provide|write)(?: me)? (?:an |a )?(?:brief |short )?"
     r"(?:overview|introduction|explanation) (?:of|to) (.+)$", r"_what \1"),
    (r"^(?:give|provide)(?: me)? (?:some )?information (?:on|about) (.+)$", r"_what \1"),
    (r"^(?:explain|describe) what (.+?) (?:is|are|means?)$", r"_what is \1"),
    (r"^(?:explain|describe) (?!what|whether|if|to |a |an |my |your |this |that |how |why "
     r"|the [a-z]+$|you|me\b|my)(.+)$",
     r"_what is \1"),
    (r"^(?:explain|clarify) (?=what )", ""),
    (r"^(?:tell|give|state|name) (the (?!#|top |names?|main |most |best )[a-z]+ of .+)$",
     r"_what is \1"),
    (r"^what " + NP + r" (?:does|do) " + NP + " have$", r"_what is the \1 of \2"),
    (r"^(?:give|write|provide|make|create) (?:a |the )?summary of ", "summarize "),
    (r"^(?:write|give|make) (?:a|an) (?=(?:summary|translation)\b)", "write a "),
    (r"\b(check)s? (?:whether|if) ", r"\1 "),
    (r"\b(program|function|script|query|method|class|macro|regex|command) "
     r"(?:that|which) (?:can )?([a-z]+)", _made_to),
    (r"\b(_howto make|to make) (an?) ", r"_howto create \2 "),
]  # fmt: skip
LISTS: Table = [
    (r"^(?:what|which) are (?:some|some of the|a-few|several|examples of) ", "_list "),
    (r"^(?:list|name|enumerate|give|tell|state|mention)(?: me)? (?:some |a-few )(?:of the )?",
     "_list "),
    (r"^(?:list|name|enumerate|give|state|mention)(?: me)? (?!me\b)", "_list "),
    (r"^(?:recommend|suggest) (?:some |a-few )?(?:good )?", "_rec "),
    (r"^what (?:is|are|would be) (a |an |some )?good (?!way|time)", r"_rec \1"),
]  # fmt: skip
