"""From a text to small words. Whatever is not plainly a word or a number (code, paths, symbols) is
kept as it is written and compared letter by letter. It must never drop a character that could
carry meaning.

The words are English in small letters; "#5" is a number, ";" a comma, "|" the end of a sentence,
and "§0" the first of the literals.
"""

import re
import unicodedata
from typing import NamedTuple

from extproc.cache.semantic.gate.grammar import GRAMMAR_WORDS
from extproc.cache.semantic.gate.lexicon import PHRASES, UNITS_AFTER_NUMBER, word_set
from extproc.cache.semantic.gate.payloads import PAYLOAD, take_payloads


class Tokens(NamedTuple):
    words: list[str]
    literals: list[str]
    payloads: tuple[str, ...]
    capitals: dict[str, str]  # word -> "c" or "l", as seen within a sentence
    lower: bool


QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"'})

WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*'?")
CAMEL = re.compile(r"(?!(?:i|e|mac)[A-Z])[a-z]+[A-Z]")
DOTTED = re.compile(r"(?:[A-Za-z]\.){1,4}[A-Za-z]")
ABBREVIATED = re.compile(r"(?:[A-Za-z]\.)*[A-Za-z]|mrs?|ms|dr|st|vs|e\.g|i\.e|prof", re.I)
NUMBER = re.compile(r"([$£€₹¥]?)v?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)*)([a-zA-Z°%€£/]{0,5})")
ISO_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
OPENING, CLOSING, MARKS = "([", ")]", ".,!?;:…"
CURRENCY = {"$": "usd", "£": "gbp", "€": "eur", "₹": "inr", "¥": "jpy"}
ROMAN = {
    "II": "2",
    "III": "3",
    "IV": "4",
    "VI": "6",
    "VII": "7",
    "VIII": "8",
    "IX": "9",
    "XI": "11",
}
ORDINAL_ENDS = {"st", "nd", "rd", "th"}
# Behind a number other than the unit in small letters: bits where MB is bytes, a million, 5G.
OTHER_UNITS = {"Mb", "Gb", "Kb", "Tb", "M", "G", "S", "H"}

CONTRACTED = {"re": "are", "ve": "have", "ll": "will", "d": "would", "m": "am"}
IS_BEHIND = word_set("what who where how that it there when why here he she which")
IRREGULAR_NOT = {
    "can't": "can n't",
    "won't": "will n't",
    "shan't": "shall n't",
    "cannot": "can not",
}


def tokenise(text: str) -> Tokens:
    text = _usual_signs(text).translate(QUOTES).strip()
    text, payloads = take_payloads(text)
    return _Reader(text, payloads).read()


def _usual_signs(text: str) -> str:
    """Wide letters and ligatures as they are usually written, but none that is small, raised or
    circled: 10² is not 102."""
    if text.isascii():
        return text
    usual = ("<wide>", "<narrow>", "<noBreak>", "<compat>")
    return unicodedata.normalize(
        "NFC",
        "".join(
            unicodedata.normalize("NFKC", sign)
            if unicodedata.decomposition(sign).startswith(usual)
            else sign
            for sign in text
        ),
    )


class _Reader:
    def __init__(self, text: str, payloads: tuple[str, ...]) -> None:
        self.chunks = text.split()
        self.payloads = payloads
        self.words: list[str] = []
        self.literals: list[str] = []
        self.capitals: dict[str, str] = {}
        self.lower = not any(c.isupper() for c in text if c != "I")

    def read(self) -> Tokens:
        last = len(self.chunks) - 1
        for position, chunk in enumerate(self.chunks):
            opening, core, closing, marks, closing2 = _edges(chunk)
            if not core:
                self._bare_marks(chunk, position == last)
                continue
            if ("(" in core or "[" in core) or (marks[:1] == "!" and core.isdigit()):
                core, opening, closing = chunk.rstrip(".,?;:") or chunk, "", ""
            if opening:
                self.words.append(";")
            self._core(core)
            if closing or closing2:
                self.words.append(";")
            if marks and position != last and not (marks == "." and ABBREVIATED.fullmatch(core)):
                self.words.append("|" if set(marks) & set(".!?…") else ";")
        while self.words and self.words[-1] in ";|":
            self.words.pop()
        return Tokens(self.words, self.literals, self.payloads, self.capitals, self.lower)

    def _bare_marks(self, chunk: str, last: bool) -> None:
        if not (last and set(chunk) <= set(".!?…")):
            self._literal(chunk)

    def _literal(self, chunk: str) -> None:
        self.words.append(f"§{len(self.literals)}")
        self.literals.append(chunk)

    def _core(self, core: str) -> None:
        starts = not self.words or self.words[-1] == "|"
        if core == PAYLOAD:
            self.words.append("§q")  # which payload it is, their order says
        elif core in ("-", "–", "—"):
            before = self.words[-1] if self.words else ""
            self._literal("-") if before.startswith("#") else self.words.append(";")
        elif core == "&":
            self.words.append("and")
        elif DOTTED.fullmatch(core) and core.lower() not in ("e.g", "i.e"):
            self._word(core.replace(".", "").upper(), starts)
        elif core in ROMAN and not starts:
            self.words.append("#" + ROMAN[core])
        elif core in OTHER_UNITS and self.words and self.words[-1].startswith("#"):
            self._literal(core)
        elif WORD.fullmatch(core) and _all_letters(core) and not CAMEL.match(core):
            self._word(core, starts)
        else:
            self._number_or_literal(core)

    def _word(self, written: str, starts: bool) -> None:
        word = written.lower()
        if written.isupper() and ((len(written) > 1 and word in GRAMMAR_WORDS) or word == "us"):
            self.words.append("^" + word)
            return
        if written == "A" and not starts:
            self.words.append("^a")
            return
        if not starts and word != "i":
            form = "c" if written[0].isupper() else "l"
            self.capitals[word] = form if self.capitals.get(word, form) == form else ""
        self.words.extend(filter(None, _contraction(word)))

    def _number_or_literal(self, core: str) -> None:
        match = NUMBER.fullmatch(core)
        if core.lower() in PHRASES:
            self.words.append(core.lower())
        elif date := ISO_DATE.fullmatch(core):
            self.words.append(f"#d{int(date[1])}-{int(date[2])}-{int(date[3])}")
        elif core.lower() in UNITS_AFTER_NUMBER:
            self.words.append(UNITS_AFTER_NUMBER[core.lower()])
        elif match is None or match[3] in OTHER_UNITS:
            self._literal(core)
        else:
            currency, digits, end = match.groups()
            number = digits.replace(",", "")
            after = {"%": "percent", "€": "eur", "£": "gbp"}.get(end) or UNITS_AFTER_NUMBER.get(
                end.lower()
            )
            if end.lower() in ORDINAL_ENDS and not currency:
                self.words.append("#o" + number)
            elif end and not after and end.lower() not in ("am", "pm"):
                self._literal(core)
            else:
                self.words.append("#" + number)
                self.words.extend(filter(None, (CURRENCY.get(currency), after)))
                self.words.extend([end.lower() + "-time"] if end and not after else [])


def _all_letters(word: str) -> bool:
    """A pattern takes x² for one."""
    return word.isascii() or word.replace("-", "").replace("'", "").isalpha()


def _edges(chunk: str) -> tuple[str, str, str, str, str]:
    """What opens, the core, what closes, marks, and what closes behind them. By strips, since a
    pattern that says it goes back and forth over brackets for half a second."""
    rest = chunk.lstrip(OPENING)
    before = rest.rstrip(CLOSING)
    inner = before.rstrip(MARKS)
    opening, last = chunk[: len(chunk) - len(rest)], rest[len(before) :]
    if inner == before:
        return opening, inner, last, "", ""
    core = inner.rstrip(CLOSING)
    return opening, core, inner[len(core) :], before[len(inner) :], last


def _contraction(word: str) -> list[str]:
    if word in IRREGULAR_NOT:
        return IRREGULAR_NOT[word].split()
    if word.endswith("n't"):
        return [word[:-3], "n't"]
    if word.endswith("s'"):
        return [word[:-1], "'s"]
    head, mark, end = word.rpartition("'")
    if mark and end == "s":
        return [head, "is" if head in IS_BEHIND else "'s"]
    if mark and end in CONTRACTED:
        return [head, CONTRACTED[end]]
    if word.startswith("re-"):  # to re-sign is not to resign
        return [word]
    if "-" in word:
        parts = word.split("-")
        return ["without", parts[0]] if len(parts) == 2 and parts[1] == "free" else parts
    return [word.rstrip("'")]
