"""The word lists of `data/`, read once. No rule stands here, and no word stands in the code of a
rule that a list could hold."""

from importlib import resources

_HERE = resources.files("extproc.cache.semantic.gate") / "data"


def _lines(name: str) -> list[str]:
    text = (_HERE / f"{name}.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def _words(name: str) -> frozenset[str]:
    return frozenset(word for line in _lines(name) for word in line.split())


def word_set(words: str) -> frozenset[str]:
    """A short list that reads better beside its rule."""
    return frozenset(words.split())


def _groups(name: str) -> dict[str, str]:
    """Each word of a line -> the first of the line. A word in two lines is a mistake in the
    list."""
    found: dict[str, str] = {}
    for line in _lines(name):
        first, *others = line.split()
        for word in (first, *others):
            if found.setdefault(word, first) != first:
                raise ValueError(f"{name}.txt: {word!r} stands in two groups")
    return found


def _comparisons(adjectives: frozenset[str]) -> dict[str, str]:
    """'bigger' -> 'big+er', 'happiest' -> 'happy+est'."""
    found: dict[str, str] = {}
    for word in sorted(adjectives):
        stems = {word.removesuffix("e")}
        if word.endswith("y"):
            stems = {word[:-1] + "i"}
        elif word[-1] not in "aeiouwxy" and word[-2] in "aeiou" and word[-3] not in "aeiou":
            stems = {word + word[-1], word}
        for stem in stems:
            found.setdefault(stem + "er", word + "+er")
            found.setdefault(stem + "est", word + "+est")
    return found


def _units() -> tuple[dict[str, str], dict[str, str]]:
    anywhere: dict[str, str] = {}
    after_number: dict[str, str] = {}
    for line in _lines("units"):
        names, _, short = line.partition("|")
        first, *others = names.split()
        for name in (first, *others):
            anywhere[name] = first
            anywhere.setdefault(name + "s", first)
        for name in short.split():
            after_number[name] = first
    return anywhere, {**anywhere, **after_number}


def _phrases() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _lines("phrases"):
        words, instead = line.split(" = ")
        found[words] = instead
    return found


def _foreign() -> dict[str, frozenset[str]]:
    pairs = (line.split(":") for line in _lines("foreign"))
    return {language: frozenset(words.split()) for language, words in pairs}


_synonyms = _groups("synonyms")

SYNONYMS = {word: first for word, first in _synonyms.items() if ":" not in word}
VERB_SYNONYMS = {w.removeprefix("to:"): first for w, first in _synonyms.items() if ":" in w}
DERIVED = _groups("derived")
OPPOSITES = {word: first for word, first in _groups("opposites").items() if word != first}
NATIONS = {word: country for word, country in _groups("nations").items() if word != country}
COMPARISONS = _comparisons(_words("gradable"))
UNITS, UNITS_AFTER_NUMBER = _units()
UNIT_NAMES = frozenset(UNITS.values())
PHRASES = _phrases()
LONGEST_PHRASE = max(len(phrase.split()) for phrase in PHRASES)
MISSPELT = _groups("misspelt")
VERBS = _words("verbs")
FOREIGN = _foreign()
AMBIGUOUS_CAPITALS = _words("ambiguous_capitals")
PAST = _words("irregular")
PARTICIPLES = _words("participles")
NAMES = _words("names")
