"""What a word means, apart from its place: spelling, inflection, synonyms, family. One name for
all words that may stand for each other. It must never join two words by how they look alone."""

import re
from functools import lru_cache

import simplemma

from extproc.cache.semantic.gate.lexicon import (
    COMPARISONS,
    DERIVED,
    MISSPELT,
    SYNONYMS,
    UNITS,
    word_set,
)

# British to American, by the end of the word; a change counts only if it makes a known word.
SPELLINGS = [
    (re.compile(pattern), new)
    for pattern, new in [
        (r"our(s|ed|ing|ite|ites|al|able)?$", r"or\1"),
        (r"is(e|ed|es|ing|ation|er|ers)$", r"iz\1"),
        (r"ys(e|ed|es|ing)$", r"yz\1"),
        (r"([bt])re(s?)$", r"\1er\2"),
        (r"ogue(s?)$", r"og\1"),
        (r"ll(ed|ing|er|ers)$", r"l\1"),
        (r"^(licen|defen|offen)ce", r"\1se"),
        (r"^aero(?=plane)", "air"),
        (r"^tyre", "tire"),
        (r"^grey", "gray"),
        (r"^cheque", "check"),
        (r"^programme(s?)$", r"program\1"),
        (r"^pyjama", "pajama"),
        (r"^alumini", "alumin"),
        (r"^(m)ould", r"\1old"),
        (r"^sulph", "sulf"),
        (r"^ph?aed", "ped"),
        (r"^jewell", "jewel"),
        (r"^kerb", "curb"),
        (r"^plough", "plow"),
        (r"^sceptic", "skeptic"),
        (r"^mum(s?)$", r"mom\1"),
    ]
]
# simplemma's base forms that a question must not be read by.
OWN_BASE = word_set(
    "better best worse worst good bad more most less least media us left ground building"
    " meaning painting drawing training meeting wedding housing saving savings feeling heading"
    " hearing people data glasses news goods physics politics wedding earnings clothes founded"
    " being"
)
BASES = {"mixed": "mix", "founded": "found-establish", "savings": "saving", "wifi": "wifi"}


@lru_cache(1 << 16)
def known(word: str) -> bool:
    """A word of English (names of the dictionary count)."""
    return simplemma.is_known(word, "en")


@lru_cache(1 << 16)
def base(word: str) -> str:
    """'organised' -> 'organize', 'mice' -> 'mouse'."""
    if word[0] in "#§^" or not word.isalpha():
        return BASES.get(word, word)
    word = MISSPELT.get(word, word)
    if word in BASES:
        return BASES[word]
    if word in OWN_BASE:
        return word
    for pattern, new in SPELLINGS:
        if len(word) > 3 and (other := pattern.sub(new, word)) != word and known(other):
            word = other
            break
    if not known(word):
        return word
    stem = simplemma.lemmatize(word, "en").lower()
    if not known(stem) and word.endswith("ed"):
        stem = next((w for w in (word[:-1], word[:-2]) if known(w)), word)  # "mixed": not "mixe"
    return stem


@lru_cache(1 << 16)
def meaning(word: str) -> str:
    """The one name of all words that mean this; 'biggest' -> 'big+est'."""
    if degree := COMPARISONS.get(word):
        adjective, _, end = degree.partition("+")
        return f"{meaning(adjective)}+{end}"
    stem = base(word)
    if (stem in UNITS) and len(stem) > 1:
        return UNITS[stem]
    for form in (word, stem):
        if form in SYNONYMS:
            return SYNONYMS[form]
    family = DERIVED.get(word) or DERIVED.get(stem) or stem
    return SYNONYMS.get(family, family)
