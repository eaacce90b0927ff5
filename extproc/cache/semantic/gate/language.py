"""Is this text English? The gate drops English grammar words; in another language they mean
something else ("die", "was", "no"). When in doubt it says no."""

import re
import unicodedata

from extproc.cache.semantic.gate.lexicon import FOREIGN, word_set
from extproc.cache.semantic.gate.tokens import Tokens
from extproc.cache.semantic.gate.words import known

ENGLISH = word_set(
    "a about all am an and any are as at be been before after between but by can could did do"
    " does each every for from had has have he her him his how i if in into is it its many me"
    " more most much must my no not of on or our out should so some than that the their them"
    " there these they this those to us was we were what when where which who whose why will"
    " with without would you your please explain tell give list name write make best"
)
FOREIGN_LETTERS = re.compile(
    r"[ßıøåæœłđąęśźżćńřšžčěůőűğşțăạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ¿¡]"
)


def why_not_english(text: str, tokens: Tokens) -> str | None:
    for character in text:
        if character.isalpha() and ord(character) > 0x24F:
            script = unicodedata.name(character, "unknown").split()[0].capitalize()
            return f"it has {script} letters, and only English is judged"
    words = [word for word in tokens.words if word[0].isalpha()]
    if FOREIGN_LETTERS.search(" ".join(words)) or "¿" in text or "¡" in text:
        return "it has letters that English does not use"
    english = sum(word in ENGLISH for word in words)
    language, foreign = _nearest(words)
    small = [w for w in words if len(w) > 2 and tokens.capitals.get(w) != "c"]
    unknown = sum(not known(word) for word in small)
    if foreign > english or (foreign == english and foreign and unknown):
        return f"it looks {language}, and only English is judged"
    if (unknown > 1 and unknown * 2 >= len(small)) or (unknown and not english and len(words) > 2):
        return "too few of its words are English"
    return None


def _nearest(words: list[str]) -> tuple[str, int]:
    counts = {name: sum(word in known for word in words) for name, known in FOREIGN.items()}
    language = max(counts, key=lambda name: counts[name])
    return language.capitalize(), counts[language]
