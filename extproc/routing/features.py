"""A text as 40 counted numbers: what difficulty is judged by, and all that is stored of a prompt.

Counts only, no word of the text can be read back. Never reads more than 1,536 characters, and uses
no regular expression: a decision must cost the same whatever a client sends.
"""

from collections.abc import Mapping
from math import log1p
from types import MappingProxyType

HEAD_CHARS, TAIL_CHARS = 1024, 512

_WORDS: dict[str, str] = {
    "what": "what which",
    "who": "who whom whose when where",
    "why": "why",
    "how": "how",
    "task": "explain compare contrast analyse analyze evaluate discuss describe design prove "
    "derive justify write implement summarize translate",
    "solve": "find calculate compute solve determine estimate simplify",
    "negation": "not no never none except nor cannot without neither least false incorrect "
    "incorrectly untrue unlikely isn't doesn't don't didn't",
    "condition": "if suppose assume assuming given let unless whether then",
    "step": "each every total altogether remaining left rest after before first second next later "
    "per more less fewer than twice thrice half double triple times another again still combined "
    "average",
    "superlative": "most best likely primarily mainly strongest greatest highest largest closest",
    "quantity": "one two three four five six seven eight nine ten twelve dozen hundred thousand "
    "third quarter percent",
    "person": "i you my your we our me us",
    "code_word": "function code program algorithm html css python javascript typescript java rust "
    "sql json xml yaml csv script regex api",
    "variable": "b c d e f g h j k l m n o p q r s t u v w x y z",
}
_GROUP_OF = {word.encode(): group for group, words in _WORDS.items() for word in words.split()}
_GROUPS = tuple(_WORDS)

NAMES = (
    *("chars", "words", "sentences", "lines"),
    *("word_length", "long_words", "sentence_length", "distinct_words", "upper_case"),
    *("numbers", "digits", "longest_number", "percent_signs", "dollar_signs"),
    *("operators", "backslashes", "code_marks"),
    *("question_marks", "ends_in_question", "quotes", "parentheses", "commas", "non_ascii"),
    *_GROUPS,
    *("negation_rate", "step_rate", "condition_rate"),
)
"""Their order is that of `features`. Counts are log(1 + count); `word_length` is a mean in bytes;
`sentence_length` is log(1 + words per sentence); `long_words` (above 8 bytes), `distinct_words`,
`upper_case`, `digits`, `commas` and the rates are shares."""

INDEX: Mapping[str, int] = MappingProxyType({name: at for at, name in enumerate(NAMES)})

_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123))
_DIGITS = bytes(range(48, 58))
# All but letters, apostrophes and what is not ASCII ends a word; words are in lower case.
_TO_WORDS = bytes(
    ord(chr(byte).lower()) if byte in _LETTERS else byte if byte == 39 or byte > 127 else 32
    for byte in range(256)
)
_TO_NUMBERS = bytes(byte if byte in _DIGITS else 32 for byte in range(256))
_UPPER = bytes(range(65, 91))
_OPERATORS = b"+*/=^<>"
_LONG_WORD_BYTES = 8
_LONGEST_NUMBER = 12

Features = list[float]
"""As long as NAMES, in its order; every one is finite."""


def features(text: str) -> Features:
    """Of a prompt's text, of any length. What is counted is counted in its first 1,024 and last 512
    characters; `chars` is the whole length. Translate and count run at the speed of C."""
    seen = text
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        seen = f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"
    raw = seen.encode("utf-8", "replace")
    count, size = raw.count, len(raw) or 1
    words = raw.translate(_TO_WORDS).split()
    word_count = len(words) or 1
    lengths = list(map(len, words))
    # "1,000.5" is one number.
    numbers = list(map(len, raw.translate(_TO_NUMBERS, b",.").split()))
    groups = dict.fromkeys(_GROUPS, 0)
    for group in filter(None, map(_GROUP_OF.get, words)):
        groups[group] += 1
    questions = count(b"?")
    sentences = count(b". ") + count(b".\n") + questions + count(b"!") + 1
    code_marks = sum(map(count, (b"{", b";", b"()", b"==", b"```", b"::")))
    return [
        log1p(len(text)),
        log1p(word_count),
        log1p(sentences),
        log1p(count(b"\n")),
        sum(lengths) / word_count,
        sum([length > _LONG_WORD_BYTES for length in lengths]) / word_count,
        log1p(word_count / sentences),
        len(set(words)) / word_count,
        _share_of(raw, _UPPER, size),
        log1p(len(numbers)),
        _share_of(raw, _DIGITS, size),
        float(min(max(numbers, default=0), _LONGEST_NUMBER)),
        log1p(count(b"%")),
        log1p(count(b"$")),
        log1p(len(raw) - len(raw.translate(None, _OPERATORS))),
        log1p(count(b"\\")),
        log1p(code_marks),
        log1p(questions),
        float(raw.rstrip().endswith(b"?")),
        log1p(count(b'"')),
        log1p(count(b"(")),
        count(b",") / word_count,
        log1p(len(raw) - len(seen)),
        *map(log1p, groups.values()),
        groups["negation"] / word_count,
        groups["step"] / word_count,
        groups["condition"] / word_count,
    ]


def _share_of(raw: bytes, those: bytes, size: int) -> float:
    return (len(raw) - len(raw.translate(None, those))) / size
