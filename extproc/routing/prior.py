"""A score of difficulty by hand, for a gateway that has no outcomes of its own yet.

The weights are a judgement, not a fit: no data set has set them, and none should.
"""

from extproc.routing.features import INDEX, NAMES, Features

# Of counts on a log scale. Length counts half: a long text is not hard for being long.
_WEIGHTS = {
    "chars": 0.5,
    "numbers": 1.0,
    "operators": 1.0,
    "code_marks": 1.0,
    "solve": 1.0,
    "code_word": 2.0,
}
_TERMS = tuple((INDEX[name], weight) for name, weight in _WEIGHTS.items())


def score(of: Features) -> float:
    """Higher is harder; 0 for an empty text. Only the order of scores means anything."""
    return sum([weight * of[at] for at, weight in _TERMS])


def parts(of: Features) -> dict[str, float]:
    """What each feature adds to the score."""
    return {NAMES[at]: weight * of[at] for at, weight in _TERMS}
