"""What people put around a question and what asks for nothing: greetings, "could you tell me",
"thanks". It must never strip a word that could belong to the question itself."""

import re

_ASK = "how|what|why|when|where|who|whom|whose|which|whether|if"
_VERBS = (
    "explain|tell|give|write|translate|list|show|describe|summari[sz]e|help|recommend|suggest|provide"
    "|define|name|convert|compare|teach|create|generate|make|find|draft|answer|let|calculate|fix"
    "|rewrite|outline|share|correct|compute|state|remind|clarify|walk"
)

_BEFORE = [
    (r"^(hi|hey|hello|greetings|good (morning|afternoon|evening)|ok|okay|well|so|dear)"
     r"( there| all| everyone| everybody| assistant)?( [;|] | (?=(" + _ASK + "|" + _VERBS +
     r"|please|kindly|can|could|would|will|do|does|is|are|i) ))", ""),
    (r"^(a )?quick question( for you)? [;|] ", ""),
    (r"^(sorry|excuse me|thanks|thank you)( [;|]) ", ""),
    (r"^(please|kindly)( [;|])? (?!my|the|your|him|her|them|everyone)", ""),
    (r"^(i (am|was) )?(just )?(wondering|curious|asking)( about)?( [;|])? (?=(" + _ASK + r")\b)", ""),
    (r"^i (am|was) (just )?(wondering|curious) (if|whether) you (can|could|would|might)( please)? "
     r"(?=(" + _VERBS + r")\b)", ""),
    (r"^(so )?(do|would|might) you (happen to |by any chance )?know (?=(" + _ASK + r")\b)", ""),
    (r"^((do|would) you have |have you got )?any (idea|ideas|clue|advice|tips|suggestions)"
     r"( on| about| for| as to)? (?=(how|what|why|when|where|who|which)\b)", ""),
    (r"^(can|could|would|will) you( please| kindly| possibly)? (?=(" + _VERBS + r")\b)", ""),
    (r"^(can|could|may) i (please )?ask (you )?( ?; ?)?(?=(" + _ASK + r")\b)", ""),
    (r"^(would|do) you mind (explain|tell|show|giv|describ|list)ing ", r"\2 "),
    (r"^(giv|describ) ", r"\1e "),
    (r"^(i would (really )?(like|love)|i want|i need|i am trying|i am looking)( you)? to "
     r"(know|learn|understand|find out|ask|figure out|discover)( [;|])? (?=(" + _ASK + r")\b)", ""),
    (r"^(i would like|i want|i need) you to (please )?(?=(" + _VERBS + r")\b)", ""),
    (r"^(please )?(tell|show|teach|remind|explain to|let) me( know)? (?=(" + _ASK + r")\b)", ""),
    (r"^(please )?(let me know|tell me) (?=(the|about)\b)", "tell "),
    (r"^(please|kindly) (?=(" + _VERBS + r")\b)", ""),
    (r"^(help|assist) me (to )?(understand|learn) (?=(how|what|why)\b)", ""),
    (r"^(write|give|show|tell|provide|send|draft|create|find|suggest|recommend) me "
     r"(?!how|what|why)", r"\1 "),
    (r"^(explain|state|say|clarify|describe) (?=(how|why|where|when|who)\b)", ""),
]  # fmt: skip
_BEHIND = [
    (r" [;|] (please|thanks|thank you|thx|cheers)( (so|very) much| a lot)?( in advance)?$", ""),
    (
        r"^(?!.*\b(?:say|said|saying|words?|spell|type|sing|means?|translate|write|pronounce|sign)\b)(.+) please$",
        r"\1",
    ),
    (r"^((?:" + _VERBS + r") .+) for me$", r"\1"),
    (r"^((?:explain|describe|clarify) .+) to me$", r"\1"),
]

_RULES_BEFORE = [(re.compile(pattern), new) for pattern, new in _BEFORE]
_RULES_BEHIND = [(re.compile(pattern), new) for pattern, new in _BEHIND]
_MAY_BE_POLITE = frozenset(
    "hi hey hello greetings good ok okay well so dear a quick sorry excuse thanks thank please kindly i"
    " just wondering curious do would might have any can could will may tell show teach remind explain"
    " let help assist write give provide send draft make create find get suggest recommend state say"
    " clarify describe".split()
)
MOST_LAYERS = 4  # "Hi, could you please tell me ..."


def strip_politeness(words: str) -> str:
    for _ in range(MOST_LAYERS):
        before = words
        if words.partition(" ")[0] not in _MAY_BE_POLITE:
            break
        for rule, new in _RULES_BEFORE:
            words = rule.sub(new, words, count=1)
        if words == before:
            break
    for rule, new in _RULES_BEHIND:
        words = rule.sub(new, words, count=1)
    return words
