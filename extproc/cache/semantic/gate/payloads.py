"""What a text quotes or carries ("...", after a colon, on further lines) is compared to the
letter: it is taken out before anything is read. When in doubt, a piece of text is payload."""

import re

from extproc.cache.semantic.gate.grammar import GRAMMAR_WORDS

PAYLOAD = "\ue000"  # stands in the text where a quoted payload stood

QUOTED = re.compile(r'"([^"]+)"' + r"|(?<![\w'(\[=])'([^'\s](?:[^']|'(?=\w))*)'(?!\w)")
AFTER_COLON = re.compile(r"(?<=\w):\s+(\S.*)$")
# "Quick question: ..." and "A vs B: what is the difference?" carry nothing behind the colon.
NO_PAYLOAD = re.compile(
    r"^(?:(?:hi|hello|hey|question|quick question|just wondering|dear)\b"
    r"|[^:]{1,60}\b(?:vs\.?|versus|or)\b[^:]{1,60}:\s+wh)",
    re.I,
)
GLOSS = re.compile(r"\b([A-Z]{2,6}) \(([A-Za-z]+(?: [A-Za-z]+){1,6})\)")
PLAIN_CODE = re.compile(r"`([a-z0-9]+(?: [a-z0-9]+)*)`")


def take_payloads(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without its payloads, and those in their order."""
    payloads: list[str] = []

    def take(match: re.Match[str]) -> str:
        payloads.append(" ".join((match[1] or match[2]).split()))
        return f" {PAYLOAD} "

    text, _, more = text.replace(PAYLOAD, " ").partition("\n")
    text = QUOTED.sub(take, text)
    text = PLAIN_CODE.sub(_without_ticks, GLOSS.sub(_expansion, text))
    tail = AFTER_COLON.search(text)
    if tail and not NO_PAYLOAD.match(text):
        payloads.append(" ".join(tail[1].split()).rstrip(" ."))
        text = text[: tail.start()]
    if more.strip():
        payloads.append(more.strip())
    return text, tuple(payloads)


def _expansion(match: re.Match[str]) -> str:
    """'NLP (natural language processing)' says its expansion twice."""
    initials = "".join(word[0] for word in match[2].split()).upper()
    return match[2] if initials == match[1] else match[0]


def _without_ticks(match: re.Match[str]) -> str:
    """`chmod 755` is chmod 755, unless a word in it would be read as English grammar."""
    return match[0] if GRAMMAR_WORDS & set(match[1].split()) else match[1]
