"""A text as the rules for stateful texts see it: lower case, without politeness, names or quotes.

Patterns only; must never decide anything.
"""

import re
from typing import NamedTuple

# What is quoted is talked about, not said; so is code.
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|(?<!\w)'[^']{2,}'(?!\w)|`[^`]*`")
# After a colon or in further lines stands what the text is about.
_PAYLOAD = re.compile(r"(:\s*\S.*|\n.+)", re.DOTALL)
_POLITE = re.compile(
    r"^(?:(?:hi|hey|hello|dear|please|kindly|so|well|quick question|i am (?:curious|wondering)|"
    r"just wondering|i was wondering)\b(?: there)?[\s,:!.]*)+(?=\w)"
    r"|^(?:can|could|would|will) you (?:please |kindly )?"
    r"(?=(?:tell|explain|write|give|translate|list|describe|define|compare|summari[sz]e|suggest|"
    r"recommend|convert|show|help|make|turn|put|fix|change|redo|shorten|add|remove|say|check|"
    r"find|rewrite|"
    r"send|book|order|call|remind|set|play|read|repeat|elaborate|rephrase|look|use)\b)"
    r"|^(?:i (?:would like|want|need) to know|do you (?:happen to )?know|tell me)(?= \w+ \w)"
    r"(?! more| a| an| another| about)\s*"
)
_CONTRACTED = (
    (re.compile(r"\b(what|who|where|when|how|why|it|that|there|here|he|she)['’]s\b"), r"\1 is"),
    (re.compile(r"\b(\w+)n['’]t\b"), r"\1 not"),
    (re.compile(r"\bi['’]m\b"), "i am"),
    (re.compile(r"\b(i|you|we|they)['’](ve|ll|d)\b"), r"\1"),
)


class Text(NamedTuple):
    """A text as the patterns see it: lower case, no politeness, quotes as `quoted`."""

    words: str
    how_to: bool
    quotes: bool
    carries: bool
    """What it is about comes with it, after a colon or in further lines."""


_HOW_TO = re.compile(
    r"(?:how (?:do|does|can|could|should|would|to|did(?! (?:i|we|my|our)))\b|what (?:should|"
    r"can|could|do|must) (?:i|we|you|one)\b(?! mean)|"
    r"(?:should|can|may|must|could) (?:i|one|we|you)\b|do (?:i|we|you) (?:need|have to)\b|"
    r"show (?:me )?how\b|why (?:is|are|does|do) my\b|is my \w+ (?:allowed|supposed|able)\b|"
    r"what (?:is|are) (?:a|an|the|some) (?:good|best|better|easy|easiest|fastest|simple)\b|"
    r"i (?:have|am|feel|want|cannot)\b|my \w+(?: \w+)? (?:is|are|has|have|does|do|will|keeps?)\b)"
)
# Names are not words: The Day After Tomorrow, Back to the Future.
_NAME = re.compile(r"(?<!^)\b(?:[A-Z][a-z]+ (?:(?:to|of|the|and) ){0,2}){1,}[A-Z][a-z]+")

GENERAL_OPENING = re.compile(
    r"(?:what|which|who|whom|whose|when|where|why|how|is|are|was|were|does|do|did|can|could|"
    r"should|must|may|will|"
    r"would|has|have|had|in (?:what|which)|to whom|at what|on which|explain|define|describe|"
    r"list|name|give|write|"
    r"translate|convert|compare|summari[sz]e|calculate|compute|solve|suggest|recommend|outline|"
    r"prove|show|implement|"
    r"draft|compose|plan|create|spell|tell|rewrite|correct|classify|generate|imagine|act as|"
    r"you are|if|i have|i am|"
    r"my|difference|example|best|symptoms|pros|integrate|differentiate|simplify|factor|design|"
    r"discuss|analy[sz]e|"
    r"print|sort|open|send|help|provide|state|find|a|an|the|please|quoted)\b"
)


def normalise(text: str) -> Text:
    words = _QUOTED.sub("quoted", text.strip())
    head = _PAYLOAD.split(words, maxsplit=1)[0] if ":" in words or "\n" in words else words
    quotes, carries = "quoted" in words, len(head) < len(words)
    words = _NAME.sub("Name", head).lower()
    for pattern, plain in _CONTRACTED:
        words = pattern.sub(plain, words)
    plain = _POLITE.sub("", words).strip()
    asks = re.search(r"\b(?:tell me|know)\b", words.removesuffix(plain))
    if plain != words and (not GENERAL_OPENING.match(plain) or (asks and plain.startswith("the "))):
        plain = f"explain {plain}"  # "Tell me the capital of Peru" states nothing
    words = plain
    return Text(words, bool(_HOW_TO.match(words)), quotes, carries)
