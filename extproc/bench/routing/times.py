"""What a decision costs, by the size of the prompt and for prompts made to be slow.

CPU time of this thread: the machine's other work is not the decision's.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from extproc.bench.bars import percentile
from extproc.learning.boosting import fit
from extproc.routing.difficulty import Difficulty, Learned, Prior, Rules, Scored
from extproc.routing.features import NAMES
from extproc.routing.learned import Evidence, Interval, Model, Usual

Told = dict[str, Any]

SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
_DECISIONS = 1500
_SHARE = 0.3
_SENTENCE = (
    "If each of the 12 pumps moves 1,250.5 litres per hour, how long does it take to fill "
    'a tank of 3 x 4 x 5 metres (about "60,000" litres), and why? Explain the code: f(x) = {x};\n'
)
_SLOW: dict[str, str] = {
    "digits": "1 2 ",
    "single letters": "b c ",
    "counted words": "if then each ",
    "operators": "+-*/=",
    "Japanese": "日本語",
    "emoji": "😀 ",
    "white space": " \n",
    "one word": "x",
}
_SLOW_CHARS = 20_000


def decisions() -> Told:
    by_size = [
        {"chars": chars, **_each_way(lambda n, chars=chars: _text(_SENTENCE, chars, n))}
        for chars in SIZES
    ]
    slow = [
        {"of": name, "chars": _SLOW_CHARS, **_timed(_learned(), _texts(name))} for name in _SLOW
    ]
    return {"by_size": by_size, "made_to_be_slow": slow}


def _texts(name: str) -> Callable[[int], str]:
    return lambda n: _text(_SLOW[name], _SLOW_CHARS, n)


def _text(of: str, chars: int, number: int) -> str:
    """Each its own text: nothing of it can have been kept from another."""
    return (f"{number} " + of * (chars // len(of) + 1))[:chars]


def _each_way(text: Callable[[int], str]) -> Told:
    ways: dict[str, Difficulty] = {
        "rules": Rules(),
        "prior": Scored(Prior(), _SHARE),
        "learned": _learned(),
    }
    return {name: _timed(way, text) for name, way in ways.items()}


def _timed(difficulty: Difficulty, text: Callable[[int], str]) -> Told:
    took_ms: list[float] = []
    gc.collect()
    gc.freeze()  # as the server does at its start
    for number in range(_DECISIONS):
        prompt = text(number)
        before = time.thread_time_ns()
        difficulty.judge(prompt, None)
        took_ms.append((time.thread_time_ns() - before) / 1e6)
    return {"p50_ms": percentile(took_ms, 50), "p99_ms": percentile(took_ms, 99)}


def _learned() -> Difficulty:
    """As many trees as any model has, of made-up outcomes: they take as long."""
    rng = np.random.default_rng(0)
    x = rng.random((1000, len(NAMES))) * 3
    fitted = fit(x, x.sum(axis=1) + rng.normal(size=1000) > 1.5 * len(NAMES))
    made_up = Interval(low=0.1, value=0.1, high=0.1)
    model = Model(
        format="forebay-router-1",
        features=NAMES,
        base=fitted.base,
        trees=fitted.trees,
        # So few decisions are not two blocks: no drift is found, and the trees decide to the end.
        usual=Usual(edges=tuple(map(float, range(9))), shares=(0.1,) * 10),
        evidence=Evidence(
            trained_on=1000,
            compared_on=1000,
            last_trained_s=0.0,
            apgr=0.6,
            more_than_prior=made_up,
            more_than_length=made_up,
        ),
    )
    return Scored(Learned(model), _SHARE)
