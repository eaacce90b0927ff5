"""From a text to what is compared: refuse what cannot be judged, then tokens, frame, items."""

from extproc.cache.semantic.gate import grammar
from extproc.cache.semantic.gate.frames import frame
from extproc.cache.semantic.gate.items import Walk
from extproc.cache.semantic.gate.language import why_not_english
from extproc.cache.semantic.gate.lexicon import (
    LONGEST_PHRASE,
    PHRASES,
    UNITS_AFTER_NUMBER,
    word_set,
)
from extproc.cache.semantic.gate.numbers import read_numbers
from extproc.cache.semantic.gate.parsed import Item, Parsed, Refused
from extproc.cache.semantic.gate.tokens import tokenise
from extproc.cache.semantic.gate.typos import frame_words

MOST_CHARACTERS = 600
COUNTED = word_set("many much old tall far long fast often heavy big deep hot cold wide")


def parse(text: str) -> Parsed | Refused:
    """The meaning of a text as the gate compares it, or why it does not judge it. Never raises."""
    text = text.strip()
    if not text:
        return Refused("it is empty")
    if len(text) > MOST_CHARACTERS:
        return Refused(
            f"it is longer than {MOST_CHARACTERS} characters, too long to prove word by word"
        )
    tokens = tokenise(text)
    if why := why_not_english(text, tokens):
        return Refused(why)
    if len(tokens.words) > 2 and text.isupper():
        return Refused("it is written in capitals throughout, which hide US from us")
    words = _after_numbers(read_numbers(frame_words(tokens.words)))
    line = frame(" ".join(_phrases(words)))
    question, rest = _class(line.split())
    walk = Walk(rest, tokens.literals, tokens.capitals, modal_is_noun=question == "howto")
    walk.read()
    items = walk.items
    if question == "diff" or question == "far":
        items = _sorted_sides(items)
    if not items:
        return Refused("no word of it says what it is about")
    howto = question == "howto"
    if howto:
        items = [item._replace(past=False) for item in items]
    return Parsed(
        text=text,
        question=question,
        items=tuple(items),
        payloads=tokens.payloads,
        tense="past" if walk.past else "future" if walk.future else "",
        perfect=walk.perfect,
        auxiliary=walk.first_auxiliary,
        passive=walk.passive_at >= 0,
        modals=frozenset() if howto else frozenset(walk.modals),
        person="" if howto else walk.person,
        lower=tokens.lower,
    )


def _after_numbers(words: list[str]) -> list[str]:
    found: list[str] = []
    for i, word in enumerate(words):
        number_before = i > 0 and words[i - 1][0] == "#"
        if word in ("degree", "degrees") and i + 1 < len(words):
            scale = UNITS_AFTER_NUMBER.get(words[i + 1], "")
            if scale in ("celsius", "fahrenheit", "kelvin"):
                continue
        if (number_before or words[i - 1] in ("degree", "degrees")) and word in UNITS_AFTER_NUMBER:
            word = UNITS_AFTER_NUMBER[word]
        elif number_before and word in ("am", "pm"):
            word += "-time"
        found.append(word)
    return found


def _phrases(words: list[str]) -> list[str]:
    found: list[str] = []
    i = 0
    while i < len(words):
        for length in range(min(LONGEST_PHRASE, len(words) - i), 0, -1):
            if new := PHRASES.get(" ".join(words[i : i + length])):
                found.extend(new.split())
                i += length
                break
        else:
            found.append("usa" if words[i] == "^us" else words[i])
            i += 1
    return found


def _class(words: list[str]) -> tuple[str, list[str]]:
    """The question's class, and the words behind what names it."""
    if not words:
        return "do", words
    first = words[0]
    if first.startswith("_can-"):
        return "yn", words
    if first[0] == "_":
        return first[1:], words[1:]
    if first == "how" and len(words) > 1 and words[1] in COUNTED:
        return "how " + words[1], words[2:]
    if first in ("what", "which"):
        return "what", words[1:]
    if first in grammar.QUESTION_WORDS:
        return ("who" if first in ("who", "whom") else first), words[1:]
    if first in grammar.AUXILIARY or first in grammar.HAVE:
        return "yn", words
    if first in ("if", "whether"):
        return "yn", words[1:]
    return "do", words


def _sorted_sides(items: list[Item]) -> list[Item]:
    """The sides of a comparison, in the order of the alphabet: A and B, or B and A."""
    cut = next((i for i, item in enumerate(items) if item.join), 0)
    if not cut or any(item.join for item in items[cut + 1 :]):
        return items
    sides = [items[:cut], items[cut:]]
    plain = [
        [
            item._replace(
                join="",
                preposition="" if item.preposition in ("between", "from") else item.preposition,
            )
            for item in side
        ]
        for side in sides
    ]
    plain.sort(key=lambda side: [item.word for item in side])
    plain[1][0] = plain[1][0]._replace(join="and")
    return plain[0] + plain[1]
