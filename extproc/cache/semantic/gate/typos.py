"""Slips of the pen: one letter too many, too few, or two swapped, in a word that is then no word.
A changed letter is never a slip here: nitrate is not nitrite."""

from functools import lru_cache

from extproc.cache.semantic.gate.lexicon import word_set
from extproc.cache.semantic.gate.words import known

SHORTEST = 7
FRAME_WORDS = sorted(
    word_set(
        "between definition describe difference different explain meaning recommend suggest"
        " summarize translate convert compare without temperature population distance language"
    )
)


def one_slip(wrong: str, right: str) -> bool:
    """Whether `wrong` is `right` with one letter left out, put in, or two neighbours swapped."""
    if wrong[0] != right[0] or abs(len(wrong) - len(right)) > 1 or wrong == right:
        return False
    if len(wrong) == len(right):
        differ = [i for i, (a, b) in enumerate(zip(wrong, right, strict=True)) if a != b]
        if len(differ) != 2 or differ[1] != differ[0] + 1:
            return False
        i, j = differ
        return wrong[i] == right[j] and wrong[j] == right[i]
    short, long = sorted((wrong, right), key=len)
    i = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    return short[i:] == long[i + 1 :]


def slip_of(wrong: str, right: str) -> bool:
    """A slip only if the one is no word at all and the other is; names are not slips of words."""
    return (
        min(len(wrong), len(right)) >= SHORTEST
        and wrong.isalpha()
        and right.isalpha()
        and not known(wrong)
        and known(right)
        and one_slip(wrong, right)
        and wrong != right + "s"
    )


@lru_cache(1 << 14)
def _frame_word(word: str) -> str:
    return next((right for right in FRAME_WORDS if slip_of(word, right)), word)


def frame_words(words: list[str]) -> list[str]:
    """Repairs slips in the words that frames are made of, which no other text can explain."""
    return [_frame_word(w) if len(w) >= SHORTEST and w.isalpha() else w for w in words]
