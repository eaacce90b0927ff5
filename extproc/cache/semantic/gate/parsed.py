"""What the gate makes of a text, and what it says of two. Plain values, safe to keep beside an
entry."""

from typing import NamedTuple


class Item(NamedTuple):
    """One word that carries meaning, with all that the words around it do to it."""

    word: str  # its meaning, one name for all synonyms; what is compared
    surface: str  # as it was written, in small letters
    preposition: str = ""  # that governs it
    determiner: str = ""  # "a", "the", "my"; "" where it has none
    negated: bool = False  # by "not", or by its own opposite ("unsafe"); both cancel
    plural: bool = False
    possessive: bool = False  # France's ...
    passive: bool = False  # a verb to whose subject it is done, and which says nothing else
    past: bool = False  # a verb in the past that no auxiliary explains: "who led"
    nation: bool = False  # an adjective (French) that stands for its country
    join: str = ""  # "and", "or", "vs" before it
    pause: str = ""  # "," or "." before it
    phrase: int = 0  # words with one number stand in one noun phrase
    capital: str = ""  # "c" or "l": its first letter in the middle of a sentence; "" where unknown


class Parsed(NamedTuple):
    text: str
    question: str  # its class: "howto", "what", "who", "yn" (yes or no), "do" (a command), ...
    items: tuple[Item, ...]
    payloads: tuple[str, ...]  # what stands in quotes, after a colon, on further lines: verbatim
    tense: str  # "past", "future", or "" (present, or none said)
    perfect: bool  # "has he seen"
    auxiliary: str  # "be" or "do", whichever came first; "" where there is none
    passive: bool  # "can it be bought" names no subject
    modals: frozenset[str]
    person: str  # who the subject is: "i", "you", "one" or ""
    lower: bool  # written without any capital: capitals say nothing


class Refused(NamedTuple):
    """A text that the gate does not judge; it can never be a hit."""

    why: str


class Verdict(NamedTuple):
    same: bool
    why: str
