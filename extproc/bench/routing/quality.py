"""How well the hard questions are found: APGR of each way to score them, with intervals.

No question is ever scored by a model that was trained on it. See extproc.learning.apgr.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from extproc.bench.lab import BenchError, say
from extproc.bench.routing.data import Questions
from extproc.learning import apgr
from extproc.learning.apgr import Floats, Ints, NoGapError
from extproc.learning.boosting import fit
from extproc.learning.train import by_hand, cross_validated, left_out
from extproc.routing import rules

Told = dict[str, Any]

REPEATS = 10
"""Different foldings; what is told is their mean, and how far that may be off by their choice. One
alone has a standard deviation of 0.005 (pooled), the mean of ten still 0.0014."""
FOLDS = 5
_SEED = 1
_MOST_OF_GAP = 2
"""So many subjects, those with the largest gap, are left out in one row."""


def all_sets(questions: Questions) -> tuple[list[Told], Floats]:
    """A row for each set of questions; and the out-of-fold scores of all. Raises BenchError."""
    try:
        return _all_sets(questions)
    except NoGapError as error:
        raise BenchError(f"the questions cannot be scored: {error}") from error


def _all_sets(questions: Questions) -> tuple[list[Told], Floats]:
    names = sorted(set(questions.benches))
    of = {name: questions.of_bench(name) for name in names}
    pooled = _crossed(questions)
    rows = [_row("pooled", "folds", questions, pooled)]
    for name in names if len(names) > 1 else []:
        rows.append(_row(name, "folds", of[name], _crossed(of[name])))
    for name, each in of.items():
        numbers = each.subject_numbers()
        if numbers is not None:
            rows += _by_subject(name, each, numbers)
    for name, other in ((a, b) for a in names for b in names if a != b):
        say(f"{other}, by a model of {name}")
        scores = fit(of[name].outcomes.x, of[name].outcomes.wanted).scores(of[other].outcomes.x)
        rows.append(_row(other, f"all of {name}", of[other], [scores]))
    return rows, pooled[0]


def _by_subject(name: str, questions: Questions, numbers: Ints) -> list[Told]:
    say(f"{name}: each of {numbers.max() + 1} subjects by a model of the others")
    new = left_out(questions.outcomes, numbers)
    rows = [_row(name, "other subjects", questions, [new], groups=numbers)]
    gaps = np.bincount(numbers, questions.outcomes.gain)
    largest = np.argsort(-gaps)[:_MOST_OF_GAP]
    rest = questions.where(~np.isin(numbers, largest))
    hardest = sorted({str(questions.subjects[np.flatnonzero(numbers == n)[0]]) for n in largest})
    part = gaps[largest].sum() / gaps.sum()
    row = _row(f"{name}, less two subjects", "folds", rest, _crossed(rest))
    return [*rows, row | {"left_out": hardest, "left_out_part_of_gap": float(part)}]


def _crossed(questions: Questions) -> list[Floats]:
    say(f"{len(questions.prompts):,} questions: {REPEATS} x {FOLDS} folds")
    return [
        cross_validated(questions.outcomes, folds=FOLDS, seed=_SEED + repeat)
        for repeat in range(REPEATS)
    ]


def _row(
    name: str,
    trained_on: str,
    questions: Questions,
    learned: Sequence[Floats],
    groups: Ints | None = None,
) -> Told:
    """`groups`: intervals are over these, not over questions."""
    outcomes = questions.outcomes
    rng = np.random.default_rng(_SEED)
    ruled = [rules.judge(prompt, None).size == "large" for prompt in questions.prompts]
    scores: dict[str, Sequence[Floats]] = {
        "random": [rng.random(len(ruled)) for _ in range(REPEATS)],
        "rules": [np.array(ruled, dtype=np.float64)],
        **{router: [score] for router, score in by_hand(outcomes.x).items()},
        "learned": learned,
    }
    flat = {
        f"{router} {n}": each for router, those in scores.items() for n, each in enumerate(those)
    }
    drawn = apgr.draws(flat, outcomes.gain, seed=_SEED, groups=groups)
    draws = {
        router: apgr.mean([drawn[f"{router} {n}"] for n in range(len(those))])
        for router, those in scores.items()
    }
    each_value = {
        router: [apgr.apgr(each, outcomes.gain) for each in those]
        for router, those in scores.items()
    }
    values = {router: float(np.mean(those)) for router, those in each_value.items()}
    return {
        "questions": name,
        "count": len(ruled),
        "learned_from": trained_on,
        "intervals_over": "questions" if groups is None else "subjects",
        "by_folding_sd": _sd_of_mean(each_value["learned"]),
        "apgr": {
            router: apgr.interval(value, draws[router]).model_dump()
            for router, value in values.items()
        },
        "learned_more_than": {
            other: apgr.interval(
                values["learned"] - values[other], draws["learned"] - draws[other]
            ).model_dump()
            for other in ("length", "prior")
        },
    }


def _sd_of_mean(values: Sequence[float]) -> float | None:
    """How much the mean would differ with other foldings; None where there is but one."""
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
