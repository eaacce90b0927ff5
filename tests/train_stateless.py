"""Fits the model of stateful texts, says how good it is on texts that it did not see, and writes it
into the package. Run again when the rules' signs, the texts or the embedder change:

    python -m tests.train_stateless            # measure only
    python -m tests.train_stateless --write
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extproc.cache.semantic.stateful_model import FEATURES, FILE, features
from extproc.cache.semantic.stateful_rules import certain, suspect
from extproc.cache.semantic.stateful_text import normalise
from extproc.embedders.onnx import ModelFiles
from extproc.embedders.onnx_worker import OnnxModel

DATA = Path(__file__).parent / "unit" / "data"
SETS = ("fresh", "texts", "held", "more")
FOLDS = 10
PENALTIES = (0.3, 1.0, 3.0, 10.0)
PRECISION = 0.88
"""Of the model alone, on texts that it did not see: its threshold is the lowest that reaches it.
Not of the model and the rules together: the rules were written with these texts in view. A text
refused for nothing costs a miss, one that passes may cost a wrong answer."""

Rows = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Texts(NamedTuple):
    rows: Rows
    stateful: Flags
    by_rules: Flags
    """Which the rules alone refuse."""


class Fit(NamedTuple):
    weights: Rows
    bias: float

    def probabilities(self, rows: Rows) -> Rows:
        return 1 / (1 + np.exp(-(rows @ self.weights + self.bias)))


def read(name: str, embedder: OnnxModel) -> Texts:
    lines = (DATA / f"stateful-{name}.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    seen = [normalise(each["text"]) for each in told]
    rows = [
        features(embedder.embed(each["text"]), text, suspect(text))
        for each, text in zip(told, seen, strict=True)
    ]
    return Texts(
        np.array(rows),
        np.array([each["stateful"] for each in told]),
        np.array([certain(text) is not None for text in seen]),
    )


def fit(rows: Rows, stateful: Flags, penalty: float) -> Fit:
    """Logistic regression with an L2 penalty on all but the bias, by Newton's method (Hastie,
    Tibshirani, Friedman: The Elements of Statistical Learning, 4.4.1)."""
    with_bias = np.hstack((rows, np.ones((len(rows), 1))))
    ridge = np.full(with_bias.shape[1], penalty)
    ridge[-1] = 1e-6
    weights = np.zeros(with_bias.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-(with_bias @ weights)))
        gradient = with_bias.T @ (p - stateful) + ridge * weights
        curvature = (with_bias.T * (p * (1 - p))) @ with_bias + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    return Fit(weights[:-1], float(weights[-1]))


def unseen(texts: Texts, penalty: float, seed: int) -> Rows:
    """For each text the probability by a model that was fitted without its fold."""
    probabilities = np.zeros(len(texts.stateful))
    for fold in folds(len(texts.stateful), seed):
        others = np.ones(len(texts.stateful), dtype=bool)
        others[fold] = False
        fitted = fit(texts.rows[others], texts.stateful[others], penalty)
        probabilities[fold] = fitted.probabilities(texts.rows[fold])
    return probabilities


def folds(count: int, seed: int) -> list[NDArray[np.int64]]:
    return np.array_split(np.random.default_rng(seed).permutation(count), FOLDS)


def choose(texts: Texts, seed: int) -> tuple[float, float]:
    """The penalty under which unseen texts are least surprising, and the threshold."""
    by_penalty = {penalty: unseen(texts, penalty, seed) for penalty in PENALTIES}

    def surprise(penalty: float) -> float:
        p = by_penalty[penalty]
        return -float(np.mean(np.log(np.where(texts.stateful, p, 1 - p))))

    penalty = min(PENALTIES, key=surprise)
    p = by_penalty[penalty]
    for threshold in np.arange(0.2, 0.95, 0.01):
        if texts.stateful[p >= threshold].mean() >= PRECISION:
            return penalty, round(float(threshold), 2)
    raise SystemExit(f"no threshold reaches a precision of {PRECISION}")


def said(flagged: Flags, stateful: Flags) -> str:
    precision, recall = stateful[flagged].mean(), flagged[stateful].mean()
    return f"precision {precision:.3f}  recall {recall:.3f}"


def part(texts: Texts, which: NDArray[np.int64] | Flags) -> Texts:
    return Texts(*(column[which] for column in texts))


def joined(parts: list[Texts]) -> Texts:
    return Texts(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def nested(texts: Texts) -> None:
    """Penalty and threshold are chosen within nine tenths of the texts, and judged by the rest."""
    flagged = np.zeros(len(texts.stateful), dtype=bool)
    for fold in folds(len(texts.stateful), seed=7):
        others = np.ones(len(texts.stateful), dtype=bool)
        others[fold] = False
        seen = part(texts, others)
        penalty, threshold = choose(seen, seed=8)
        fitted = fit(seen.rows, seen.stateful, penalty)
        flagged[fold] = fitted.probabilities(texts.rows[fold]) >= threshold
    print(f"nested cross-validation, model alone:  {said(flagged, texts.stateful)}")
    both = said(flagged | texts.by_rules, texts.stateful)
    print(f"  with the rules (which know the texts): {both}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    arguments = parser.parse_args()
    embedder = OnnxModel(*ModelFiles.minilm())
    by_name = {name: read(name, embedder) for name in SETS}
    texts = joined(list(by_name.values()))
    print(f"{len(texts.stateful)} texts, {texts.stateful.sum()} stateful; {embedder.name}")
    nested(texts)
    for name in SETS:  # a set was written in one go: another is further away than another fold
        seen = joined([each for other, each in by_name.items() if other != name])
        penalty, threshold = choose(seen, seed=8)
        flagged = fit(seen.rows, seen.stateful, penalty).probabilities(by_name[name].rows)
        print(
            f"all but {name}, then {name}: model alone {threshold:.2f}: "
            f"{said(flagged >= threshold, by_name[name].stateful)}"
        )
    penalty, threshold = choose(texts, seed=8)
    fitted = fit(texts.rows, texts.stateful, penalty)
    print(f"penalty {penalty:g}, threshold {threshold:g}")
    if arguments.write:
        content = {
            "embedder": embedder.name,
            "features": FEATURES,
            "texts": SETS,
            "threshold": threshold,
            "bias": round(fitted.bias, 4),
            "weights": [round(float(weight), 4) for weight in fitted.weights],
        }
        FILE.write_text(json.dumps(content) + "\n")
        print(f"written: {FILE}")


if __name__ == "__main__":
    main()
