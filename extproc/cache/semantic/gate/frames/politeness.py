"""What people put around a question and what asks for nothing: greetings, "could you tell me",
"thanks". It must never strip a word that could belong to the question itself."""

from extproc.cache.semantic.gate.frames.parts import Table, apply, compiled
from extproc.cache.semantic.gate.lexicon import word_set

_ASK = "how|what|why|when|where|who|whom|whose|which|whether|if"
_VERBS = (
    "explain|tell|give|write|translate|list|show|describe|summari[sz]e|help|recommend|suggest|provide"
    "|define|name|convert|compare|teach|create|generate|make|find|draft|answer|let|calculate|fix"
    "|rewrite|outline|share|correct|compute|state|remind|clarify|walk"
)

_BEFORE: Table = [
    (r"^(hi|hey|hello|greetings|good (morning|afternoon|evening)|ok|okay|well|so|dear)"
     r"( there| all| everyone| everybody| assistant)?( [;|])? (?=(" + _ASK + "|" + _VERBS +
     r"|please|kindly|can|could|would|will|do|does|is|are|i|any|quick|just|tell) )", ""),
    (r"^(a )?quick question( for you)? [;|] ", ""),
    (r"^(sorry|excuse me|thanks|thank you)( [;|]) ", ""),
    (r"^(please|kindly)( [;|])? (?!my|the|your|him|her|them|everyone)", ""),
    (r"^(i (am|was) )?(just )?(wondering|curious|asking)( about)?( [;|])? (?=(" + _ASK + r")\b)",
     ""),
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
_BEHIND: Table = [
    (r" [;|] (please|thanks|thank you|thx|cheers)( (so|very) much| a lot)?( in advance)?$", ""),
    # Not where "please" may be what is asked about: "how do I say please".
    (r"^(?!.*\b(?:say|said|saying|words?|spell|type|sing|means?|translate|write|pronounce|sign)\b)"
     r"(.+) please$", r"\1"),
    (r"^((?:" + _VERBS + r") .+) for me$", r"\1"),
    (r"^((?:explain|describe|clarify) .+) to me$", r"\1"),
]  # fmt: skip

_RULES_BEFORE = compiled(_BEFORE)
_RULES_BEHIND = compiled(_BEHIND)
_MAY_BE_POLITE = word_set(
    "hi hey hello greetings good ok okay well so dear a quick sorry excuse thanks thank please"
    " kindly i just wondering curious do would might have any can could will may tell show teach"
    " remind explain let help assist write give provide send draft make create find get suggest"
    " recommend state say clarify describe"
)
MOST_LAYERS = 4  # "Hi, could you please tell me ..."


def strip_politeness(words: str) -> str:
    for _ in range(MOST_LAYERS):
        before = words
        if words.partition(" ")[0] not in _MAY_BE_POLITE:
            break
        words = apply(_RULES_BEFORE, words)
        if words == before:
            break
    return apply(_RULES_BEHIND, words)
