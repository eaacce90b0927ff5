"""Numbers, ordinals and dates, in words or digits, to one writing: "#12", "#o3" (the third),
"#d1776-7-4". It must never join what could be two numbers."""

from extproc.cache.semantic.gate.lexicon import word_set

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
    " fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
)
CARDINAL = {word: n for n, word in enumerate(_SMALL.split())} | {
    word: 20 + 10 * n for n, word in enumerate(_TENS.split())
}
ORDINAL = {w: n for n, w in enumerate(_ORDINALS.split(), 1)} | {"twentieth": 20, "thirtieth": 30}
MULTIPLE = {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}

_MONTHS = "january february march april may june july august september october november december"
MONTH = {name: n for n, name in enumerate(_MONTHS.split(), 1)}
SHORT_MONTH = {name[:3]: n for name, n in MONTH.items()} | {"sept": 9}
# "one" is a number, but not where it is a pronoun: "which one", "how does one ...".
PRONOUN_ONE = word_set(
    "which this that the any no some every each another does do can should could would if is"
)
BEFORE_MAY = word_set("in of since until by this next last early late during")


def read_numbers(words: list[str]) -> list[str]:
    return _dates(_cardinals(words))


def _cardinals(words: list[str]) -> list[str]:
    found: list[str] = []
    i = 0
    while i < len(words):
        word = words[i]
        before = found[-1] if found else ""
        after = words[i + 1] if i + 1 < len(words) else ""
        value = CARDINAL.get(word)
        if word == "one" and (before in PRONOUN_ONE or not after or not before):
            value = None
        if word == "second" and (before in ("per", "a") or before[:1] == "#" or not after):
            found.append("second-of-time")
            i += 1
        elif word in ORDINAL and word not in CARDINAL:
            found.append(f"#o{ORDINAL[word]}")
            i += 1
        elif word == "dozen":
            if before == "a":
                found.pop()
            found.append("#12")
            i += 1
        elif value is not None or (word[:1] == "#" and word[1:].isdigit() and after in MULTIPLE):
            number, i = _compose(words, i, int(word[1:]) if value is None else value)
            found.append(number)
        elif word in MULTIPLE and before == "a":
            found[-1] = f"#{MULTIPLE[word]}"
            i += 1
        else:
            found.append(word)
            i += 1
    return found


def _compose(words: list[str], i: int, value: int) -> tuple[str, int]:
    """'twenty five', 'two hundred', '5 million'; where it is not sure, it stops early."""
    i += 1
    if 20 <= value < 100 and words[i - 1] in CARDINAL and i < len(words):
        unit = CARDINAL.get(words[i], 0)
        if 0 < unit < 10:
            value, i = value + unit, i + 1
        elif 0 < ORDINAL.get(words[i], 0) < 10:
            return f"#o{value + ORDINAL[words[i]]}", i + 1
    while i < len(words) and words[i] in MULTIPLE:
        value, i = value * MULTIPLE[words[i]], i + 1
    return f"#{value}", i


def _day(word: str) -> int:
    digits = word[2:] if word[:2] == "#o" else word[1:] if word[:1] == "#" else ""
    return int(digits) if digits.isdigit() and 1 <= len(digits) <= 2 and int(digits) <= 31 else 0


def _year(word: str) -> str:
    return word[1:] if len(word) == 5 and word[0] == "#" and word[1:].isdigit() else ""


def _dates(words: list[str]) -> list[str]:
    found: list[str] = []
    i = 0
    while i < len(words):
        word, rest = words[i], words[i + 1 : i + 4]
        month = MONTH.get(word) or SHORT_MONTH.get(word)
        day_before = _day(found[-1]) if found else 0
        if found and found[-1] == "of" and len(found) > 1 and found[-2][:2] == "#o":
            day_before = _day(found[-2])
        if month and day_before:
            del found[-2 if found[-1] == "of" else -1 :]
            year, i = _year_after(rest, i + 1)
            found.append(f"#d{year}-{month}-{day_before}")
        elif month and rest and _day(rest[0]):
            year, i = _year_after(rest[1:], i + 2)
            found.append(f"#d{year}-{month}-{_day(rest[0])}")
        elif month and rest and _year(rest[0]):
            found.append(f"#m{_year(rest[0])}-{month}")
            i += 2
        elif word == "may" and found and found[-1] in BEFORE_MAY:
            found.append("may-month")
            i += 1
        else:
            found.append(word)
            i += 1
    return found


def _year_after(rest: list[str], i: int) -> tuple[str, int]:
    if rest and _year(rest[0]):
        return _year(rest[0]), i + 1
    if len(rest) > 1 and rest[0] == ";" and _year(rest[1]):
        return _year(rest[1]), i + 2
    return "", i
