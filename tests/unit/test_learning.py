"""`forebay train-router`: the measure, the fit, what is read, and when a model is written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from extproc.cli import app
from extproc.learning import apgr, boosting, train
from extproc.learning.apgr import NoGapError
from extproc.learning.outcomes import Outcomes, OutcomesError, read
from extproc.routing.features import INDEX, NAMES
from extproc.routing.learned import parse
from extproc.routing.outcome import Outcome, named

# --- APGR -----------------------------------------------------------------------------------------

GAIN = np.array([1.0, 0.0, 0.0, -1.0, 1.0])


def pgr_area(order: list[int], gain: np.ndarray) -> float:
    """By the definition: the area under what is recovered, drawn over the share."""
    recovered = np.concatenate([[0], np.cumsum(gain[order])]) / gain.sum()
    return float(np.trapezoid(recovered, dx=1 / len(gain)))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 0, 1, 2, 3], [3, 1, 2, 0, 4]])
def test_apgr_is_the_area_under_the_gap_recovered(order: list[int]) -> None:
    score = np.empty(5)
    score[order] = [5, 4, 3, 2, 1]
    assert apgr.apgr(score, GAIN) == pytest.approx(pgr_area(order, GAIN))


def test_equal_scores_are_worth_the_mean_of_their_orders() -> None:
    assert apgr.apgr(np.zeros(5), GAIN) == pytest.approx(0.5)
    tied = np.array([2.0, 2.0, 1.0, 0.0, 0.0])
    orders = [[a, b, 2, c, d] for a, b in ((0, 1), (1, 0)) for c, d in ((3, 4), (4, 3))]
    assert apgr.apgr(tied, GAIN) == pytest.approx(np.mean([pgr_area(o, GAIN) for o in orders]))


def test_a_draw_is_the_apgr_of_the_requests_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    gain = rng.choice([1.0, 0.0, -1.0], 60, p=[0.5, 0.4, 0.1])
    score = rng.integers(0, 9, 60).astype(float)
    monkeypatch.setattr(apgr, "DRAWS", 100)
    drawn = apgr.draws({"it": score}, gain, seed=5)["it"]
    (times,) = apgr._weights(60, None, 5)
    assert np.all(times.sum(axis=1) == 60)
    for n in (0, 57):
        rows = np.repeat(np.arange(60), times[n].astype(int))
        assert drawn[n] == pytest.approx(apgr.apgr(score[rows], gain[rows]))


def test_draws_are_paired_and_hold_the_value() -> None:
    rng = np.random.default_rng(1)
    gain = rng.choice([1.0, 0.0], 500, p=[0.3, 0.7])
    score = gain + rng.normal(size=500)
    drawn = apgr.draws({"one": score, "same": score * 7}, gain, seed=1)
    assert drawn["one"] == pytest.approx(drawn["same"])
    of = apgr.interval(apgr.apgr(score, gain), drawn["one"])
    assert of.low < of.value < of.high
    assert 0.02 < of.high - of.low < 0.2


def test_groups_are_drawn_whole() -> None:
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(10), 50)
    hard = np.arange(10) < 5
    gain = (rng.random(500) < np.where(hard[groups], 0.6, 0.1)).astype(float)
    score = np.where(np.arange(10) % 2 == 0, 1.0, 0.0)[groups]
    by_one = apgr.draws({"it": score}, gain, seed=1)["it"].std()
    by_group = apgr.draws({"it": score}, gain, seed=1, groups=groups)["it"].std()
    assert by_group > 2 * by_one


@pytest.mark.parametrize("gain", [np.zeros(4), np.array([-1.0, 0, 0, 0])])
def test_without_a_gap_there_is_no_apgr(gain: np.ndarray) -> None:
    with pytest.raises(NoGapError, match="nothing to route for"):
        apgr.apgr(np.arange(4.0), gain)


# --- the fit --------------------------------------------------------------------------------------


def requests(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, len(NAMES)))


def test_trees_learn_what_depends_on_two_features_together() -> None:
    x = requests(2000)
    wanted = (x[:, 3] > 0) != (x[:, 7] > 0.5)  # neither says anything alone, or hardly
    fitted = boosting.fit(x, wanted)
    fresh = requests(1000, seed=1)
    right = (fitted.scores(fresh) > 0) == ((fresh[:, 3] > 0) != (fresh[:, 7] > 0.5))
    assert right.mean() > 0.85


def test_scores_are_log_odds() -> None:
    x = requests(4000)
    rng = np.random.default_rng(3)
    chance = np.where(x[:, 0] > 0, 0.4, 0.1)
    fitted = boosting.fit(x, rng.random(4000) < chance)
    odds = 1 / (1 + np.exp(-fitted.scores(requests(2000, seed=4))))
    high = requests(2000, seed=4)[:, 0] > 0
    assert odds[high].mean() == pytest.approx(0.4, abs=0.05)
    assert odds[~high].mean() == pytest.approx(0.1, abs=0.05)


def test_a_first_tree_is_the_best_newton_step() -> None:
    """By hand: one feature of two values, 100 requests each; base is even, lambda 5, rate 0.12."""
    x = np.zeros((200, len(NAMES)))
    x[100:, 5] = 1.0
    wanted = np.arange(200) % 10 < np.where(np.arange(200) < 100, 2, 8)
    tree = boosting.fit(x, wanted).trees[0]
    assert (tree.root.feature, tree.root.at) == (NAMES[5], 0.5)
    step = 0.12 * 30 / (100 * 0.25 + 5)  # slopes sum to 100 x (0.5 - 0.2), curves to 100 / 4
    assert tree.values == pytest.approx((-step, -step, step, step), abs=1e-6)


def test_no_leaf_is_made_of_few_requests() -> None:
    x = np.zeros((400, len(NAMES)))
    x[:29, 5] = 1.0
    x[:200, 6] = 1.0
    wanted = np.arange(400) < 29
    assert boosting.fit(x, wanted).trees[0].root.feature == NAMES[6]


@pytest.mark.parametrize(
    ("x", "wanted"),
    [
        (requests(100), np.ones(100, bool)),
        (requests(100), np.zeros(100, bool)),
        (np.zeros((100, len(NAMES))), np.arange(100) < 50),
        (requests(40), np.arange(40) < 20),
    ],
)
def test_where_there_is_nothing_to_learn_it_says_so(x: np.ndarray, wanted: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"nothing (to learn|splits them)"):
        boosting.fit(x, wanted)


def test_the_fit_is_the_same_each_time() -> None:
    x = requests(300)
    assert boosting.fit(x, x[:, 1] > 0) == boosting.fit(x, x[:, 1] > 0)


# --- from a file to a model -----------------------------------------------------------------------


def rows(count: int, *, learnable: bool, seed: int = 0) -> list[Outcome]:
    """Traffic where large helps with many negations, or by chance; length and prior say nothing."""
    rng = np.random.default_rng(seed)
    found: list[Outcome] = []
    for number in range(count):
        of = rng.random(len(NAMES))
        helps = rng.random() < (0.6 if of[INDEX["negation"]] > 0.7 and learnable else 0.15)
        found.append(
            Outcome(
                time_s=1.79e9 + 60 * number,
                features=named(of.tolist()),
                small_right=not helps and bool(rng.random() < 0.9),
                large_right=helps or bool(rng.random() < 0.9),
            )
        )
    return found


def write(path: Path, those: list[Outcome]) -> Path:
    path.write_text("".join(row.model_dump_json() + "\n" for row in those))
    return path


def ran(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["train-router", *map(str, arguments)])


def test_a_model_that_is_surely_better_is_written_and_can_be_loaded(tmp_path: Path) -> None:
    file = write(tmp_path / "outcomes.jsonl", rows(2000, learnable=True))
    done = ran(file, "--write", tmp_path / "router.json", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    model = parse((tmp_path / "router.json").read_bytes())
    assert told["beats_both"] is True
    assert told["refused"] is None
    assert told["later_apgr"]["learned"]["value"] == model.evidence.apgr > 0.6
    assert (model.evidence.trained_on, model.evidence.compared_on) == (1200, 800)
    assert model.usual.shares == pytest.approx((0.1,) * 10, abs=0.02)


def test_a_model_that_is_not_surely_better_is_not_written(tmp_path: Path) -> None:
    file = write(tmp_path / "outcomes.jsonl", rows(1500, learnable=False))
    done = ran(file, "--write", tmp_path / "router.json")
    assert done.exit_code == 1
    assert "not surely better" in done.stderr
    assert "APGR on the later requests" in done.stdout
    assert not (tmp_path / "router.json").exists()


def test_what_was_true_only_of_earlier_traffic_does_not_make_a_model(tmp_path: Path) -> None:
    early, late = rows(900, learnable=True), rows(1500, learnable=False)[900:]
    file = write(tmp_path / "outcomes.jsonl", [*early, *late])
    assert ran(file, "--write", tmp_path / "router.json").exit_code == 1
    assert not (tmp_path / "router.json").exists()


def test_time_decides_what_is_later_not_the_order_of_the_lines(tmp_path: Path) -> None:
    those = rows(900, learnable=True)
    one = read(write(tmp_path / "one.jsonl", those))
    other = read(write(tmp_path / "other.jsonl", those[::-1]))
    assert np.array_equal(one.x, other.x)
    assert np.all(np.diff(one.time_s) > 0)


def test_every_request_is_scored_by_a_model_that_did_not_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = of(rows(60, learnable=True))
    seen: list[set[float]] = []

    class Blind:
        def __init__(self, x: np.ndarray) -> None:
            self.trained_on = set(x[:, 0].tolist())

        def scores(self, x: np.ndarray) -> np.ndarray:
            asked = set(x[:, 0].tolist())
            assert not asked & self.trained_on
            seen.append(asked)
            return x[:, 0]

    monkeypatch.setattr(train, "fit", lambda x, wanted: Blind(x))
    scores = train.cross_validated(outcomes, folds=5, seed=1)
    assert np.array_equal(scores, outcomes.x[:, 0])
    assert len(seen) == 5


def of(those: list[Outcome]) -> Outcomes:
    return Outcomes(
        np.array([row.time_s for row in those]),
        np.array([row.in_order for row in those]),
        np.array([row.small_right for row in those]),
        np.array([row.large_right for row in those]),
    )


def test_too_few_requests_are_refused(tmp_path: Path) -> None:
    done = ran(write(tmp_path / "outcomes.jsonl", rows(799, learnable=True)))
    assert done.exit_code == 1
    assert "800 is the least" in done.stderr


def test_traffic_without_a_gap_is_refused() -> None:
    outcomes = of(rows(900, learnable=True))
    same = Outcomes(outcomes.time_s, outcomes.x, outcomes.large_right, outcomes.large_right)
    with pytest.raises(OutcomesError, match="nothing to learn"):
        train.train(same)
    worse = Outcomes(outcomes.time_s, outcomes.x, outcomes.large_right, outcomes.small_right)
    with pytest.raises(OutcomesError, match="nothing to route for"):
        train.train(worse)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2"),
        ("", "line 2"),
        ('{"time_s": 1}', "line 2: features"),
        (
            '{"time_s": 1, "features": {"chars": 1}, "small_right": 0, "large_right": true}',
            "line 2",
        ),
        (
            '{"time_s": 1, "features": {"chars": 1}, "small_right": true, "large_right": true}',
            "line 2: features: words is missing, and 38 more",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "outcomes.jsonl"
    file.write_text(f"{rows(1, learnable=True)[0].model_dump_json()}\n{line}\n")
    with pytest.raises(OutcomesError, match=why):
        read(file)


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutcomesError, match="cannot be read"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(OutcomesError, match="no line"):
        read(write(tmp_path / "empty.jsonl", []))
