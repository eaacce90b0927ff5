"""How a text is counted, scored and judged, and whether the promised share is kept."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.bench.routing.share import OVER, adversary, streams, worst_error
from extproc.routing import prior
from extproc.routing.difficulty import Difficulty, Learned, Off, Prior, Rules, Scored
from extproc.routing.drift import Drift, stability_index
from extproc.routing.features import HEAD_CHARS, INDEX, NAMES, TAIL_CHARS, features
from extproc.routing.learned import TREES, Model, ModelError, Split, Tree, Trees, parse
from extproc.routing.outcome import Outcome, named
from extproc.routing.share import ShareKeeper

GUARANTEED_POINTS = 2.55 + 0.05  # (1 + step) / (step x 2,000), and one request for rounding


def counted(text: str) -> dict[str, float]:
    """Counts themselves, where they are logarithms."""
    return {name: round(math.expm1(value), 6) for name, value in named(features(text)).items()}


# --- features -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("four", "chars", 4),
        ("It's a test, isn't it", "words", 5),
        ("One. Two! Three?", "sentences", 4),
        ("a\nb\n", "lines", 2),
        ("1,000.5 and 7 in 2024.", "numbers", 3),
        ("10% of 5%", "percent_signs", 2),
        ("$5", "dollar_signs", 1),
        ("3*x + 2 = 9/y", "operators", 4),
        (r"\frac{1}{2}", "backslashes", 1),
        ("def f(): { x == 1; }", "code_marks", 4),
        ("```sql\nselect\n```", "code_marks", 2),
        ("Why? How?", "question_marks", 2),
        ('"so"', "quotes", 2),
        ("(a) (b)", "parentheses", 2),
        ("WHAT is which", "what", 2),
        ("Calculate, solve: find it", "solve", 3),
        ("unsolved findings", "solve", 0),  # whole words
        ("This isn't never", "negation", 2),
        ("Write a Python function", "code_word", 2),
        ("x and y, but i and a", "variable", 2),
        ("2x", "variable", 1),
        ("é日", "non_ascii", 3),  # bytes more than characters
    ],
)
def test_what_is_counted(text: str, name: str, count: float) -> None:
    assert counted(text)[name] == count


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("Ab", "upper_case", 0.5),
        ("a1", "digits", 0.5),
        ("12 1,234", "longest_number", 4),
        ("9" * 50, "longest_number", 12),
        ("aaaa bb", "word_length", 3),
        ("incredibly so", "long_words", 0.5),
        ("so so so no", "distinct_words", 0.5),
        ("a, b", "commas", 0.5),
        ("no way", "negation_rate", 0.5),
        ("really? \n", "ends_in_question", 1),
        ("really? yes", "ends_in_question", 0),
    ],
)
def test_what_is_measured(text: str, name: str, value: float) -> None:
    assert features(text)[INDEX[name]] == value


def test_only_the_beginning_and_the_end_of_a_long_text_are_counted() -> None:
    middle = "9 + why? " * 100_000
    long = "a " * (HEAD_CHARS // 2) + middle + "b " * (TAIL_CHARS // 2)
    found = counted(long)
    assert (found["numbers"], found["operators"], found["why"]) == (0, 0, 0)
    assert found["words"] == HEAD_CHARS // 2 + TAIL_CHARS // 2
    assert found["chars"] == len(long)


@given(st.text(alphabet=st.characters(), max_size=3000))
def test_any_text_has_all_features_and_they_are_finite(text: str) -> None:
    found = features(text)
    assert len(found) == len(NAMES) == len(set(NAMES))
    assert all(math.isfinite(value) and value >= 0 for value in found)
    assert math.isfinite(prior.score(found))


def test_a_text_that_is_no_unicode_has_features() -> None:
    assert counted("a\ud800b")["chars"] == 3


# --- the share ------------------------------------------------------------------------------------

_STREAMS = [name for name, _ in streams(0)]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.95])
@pytest.mark.parametrize("name", _STREAMS)
def test_the_share_is_kept_over_any_2000_requests(name: str, share: float) -> None:
    for seed in (1, 2):
        assert worst_error(dict(streams(seed))[name].tolist(), share) <= GUARANTEED_POINTS


@pytest.mark.parametrize("share", [0.05, 0.3, 0.95])
def test_the_share_is_kept_where_scores_follow_the_decisions(share: float) -> None:
    assert adversary(share) <= GUARANTEED_POINTS


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(1, 900)), min_size=1, max_size=12),
    st.floats(0.01, 0.99),
)
def test_the_share_is_kept_whatever_the_scores(
    blocks: list[tuple[float, int]], share: float
) -> None:
    scores = [score for score, times in blocks for _ in range(times)]
    scores += [0.0] * max(0, OVER - len(scores))
    assert worst_error(scores, share) <= GUARANTEED_POINTS


def test_the_highest_scores_go_large() -> None:
    keeper = ShareKeeper(0.3)
    scores = dict(streams(3))["steady"].tolist()
    large = [keeper.is_large(score) for score in scores]
    highest = sorted(scores)[-len(scores) // 5 :][0]
    lowest = sorted(scores)[len(scores) // 2]
    those = list(zip(scores, large, strict=True))[500:]
    assert sum(is_large for score, is_large in those if score > highest) > 0.99 * len(those) * 0.2
    assert not any(is_large for score, is_large in those if score < lowest)


def test_the_scale_of_the_scores_does_not_matter() -> None:
    scores = dict(streams(4))["steady"].tolist()
    one, other = ShareKeeper(0.3), ShareKeeper(0.3)
    assert [one.is_large(score) for score in scores] == [
        other.is_large(math.exp(score) * 1e-9) for score in scores
    ]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, math.nan])
def test_a_share_of_none_or_all_is_no_share(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        ShareKeeper(share)


# --- the ways to judge ----------------------------------------------------------------------------

HARD = "Find x: 3*x + 4 = 10. Then calculate 12% of 350 with a Python function: f(x) = {x};"
EASY = "Tell me a story about a cat."


def model(**changes: Any) -> dict[str, Any]:
    """As its file has it: one more point for more than one number, half of one for length."""
    more_numbers = {"feature": "numbers", "at": 1.0}
    longer = {"feature": "chars", "at": 3.5}
    tree = {
        "root": more_numbers,
        "low": longer,
        "high": longer,
        "values": [0.0, 0.5, 1.0, 1.5],
    }
    better = {"low": 0.01, "value": 0.05, "high": 0.09}
    return {
        "format": "forebay-router-1",
        "features": list(NAMES),
        "base": -1.0,
        "trees": [tree] * TREES,
        "usual": {"edges": [0.0], "shares": [0.5, 0.5]},
        "evidence": {
            "trained_on": 600,
            "compared_on": 400,
            "last_trained_s": 1.0,
            "apgr": 0.65,
            "more_than_prior": better,
            "more_than_length": better,
        },
    } | changes


def read_model(**changes: Any) -> Model:
    return Model.model_validate_json(json.dumps(model(**changes)))


@pytest.mark.parametrize(
    "difficulty", [Off("large"), Rules(), Scored(Prior(), 0.3), Scored(Learned(read_model()), 0.3)]
)
def test_a_client_in_a_hurry_gets_the_small_pool(difficulty: Difficulty) -> None:
    assert difficulty.judge("Compare " + HARD, 999) == ("small", "latency-budget")
    assert difficulty.judge("Compare " + HARD, 1000).reason != "latency-budget"


@pytest.mark.parametrize("size", ["small", "large"])
def test_off_says_the_same_of_all(size: Any) -> None:
    assert {Off(size).judge(text, None) for text in (HARD, EASY, "")} == {(size, "default")}


@pytest.mark.parametrize("difficulty", [Scored(Prior(), 0.3), Scored(Learned(read_model()), 0.3)])
def test_of_the_harder_texts_so_many_go_large_as_the_share_allows(difficulty: Scored) -> None:
    for text in (HARD, EASY) * 50:
        difficulty.judge(text, None)
    judged = [difficulty.judge(text, None) for text in (HARD, EASY) * 100]
    reasons = {size: {j.reason for j in judged if j.size == size} for size in ("small", "large")}
    assert {j.size for j in judged[1::2]} == {"small"}
    assert abs(sum(j.size == "large" for j in judged) / len(judged) - 0.3) < 0.03
    assert {name.partition("-")[2] for name in reasons["small"]} == {"easy"}
    assert {name.partition("-")[2] for name in reasons["large"]} == {"hard"}


def test_hurried_requests_are_no_part_of_the_share() -> None:
    difficulty = Scored(Prior(), 0.5)
    judged = []
    for _ in range(500):
        difficulty.judge(HARD, 10)
        judged.append(difficulty.judge(EASY, None).size)
    assert abs(judged.count("large") / len(judged) - 0.5) < 0.06


def test_prior_finds_a_sum_and_code_harder_than_a_story() -> None:
    sum_, story, code = (
        prior.score(features(text))
        for text in ("What is 17 * 23 + 5?", EASY, "Write a Python script, please, for it.")
    )
    assert sum_ > story
    assert code > story
    assert prior.score(features("")) == 0


# --- the learned model ----------------------------------------------------------------------------


def test_trees_add_the_value_of_the_leaf_that_features_lead_to() -> None:
    of = [0.0] * len(NAMES)
    trees = Trees(
        -1.0,
        (
            Tree(
                root=Split(feature="numbers", at=1.0),
                low=Split(feature="chars", at=2.0),
                high=Split(feature="words", at=3.0),
                values=(0.1, 0.2, 0.4, 0.8),
            ),
        ),
    )
    found = []
    for numbers, chars, words in ((1, 2, 9), (1, 3, 0), (2, 0, 3), (2, 9, 4)):
        of[INDEX["numbers"]], of[INDEX["chars"]], of[INDEX["words"]] = numbers, chars, words
        found.append(round(trees.score(of), 6))
    assert found == [-0.9, -0.8, -0.6, -0.2]  # at most `at` is low


def test_a_model_is_read_as_it_was_written() -> None:
    assert parse(read_model().model_dump_json().encode()) == read_model()


def with_tree(**changes: Any) -> dict[str, Any]:
    trees = model()["trees"]
    return {"trees": [trees[0] | changes, *trees[1:]]}


def with_evidence(**changes: Any) -> dict[str, Any]:
    return {"evidence": model()["evidence"] | changes}


WORSE = {"low": -0.01, "value": 0.05, "high": 0.1}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": "forebay-router-2"}, "format"),
        ({"features": list(NAMES)[:-1]}, "train again"),
        ({"features": [*NAMES[1:], NAMES[0]]}, "train again"),
        ({"trees": model()["trees"][:-1]}, "trees"),
        ({"more": 1}, "more"),
        ({"base": "0"}, "base"),
        ({"base": math.inf}, "finite"),
        (with_tree(root={"feature": "moon", "at": 1.0}), "moon"),
        (with_tree(root={"feature": "chars", "at": None}), "trees.0.root.at"),
        (with_tree(values=[0.0, 1.0, 2.0]), "trees.0.values"),
        (with_tree(values=[0.0, 1.0, 2.0, True]), "trees.0.values.3"),
        ({"usual": {"edges": [0.0], "shares": [1.0]}}, "usual"),
        ({"usual": {"edges": [0.0], "shares": [0.5, 0.4]}}, "sum to 1"),
        ({"usual": {"edges": [1.0, 1.0], "shares": [0.5, 0.3, 0.2]}}, "rise"),
        (with_evidence(more_than_length=WORSE), "did not beat"),
        (with_evidence(more_than_prior=WORSE), "did not beat"),
    ],
)
def test_a_model_that_is_not_as_written_by_training_is_refused(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ModelError, match=why):
        parse(json.dumps(model(**changes)).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_what_is_no_model_is_refused(content: bytes) -> None:
    with pytest.raises(ModelError, match="train-router"):
        parse(content)


# --- drift ----------------------------------------------------------------------------------------


def drifts(blocks: list[list[float]]) -> bool:
    drift = Drift((0.0, 1.0), (0.5, 0.3, 0.2))
    for block in blocks:
        for score in block * (1000 // len(block)):
            drift.saw(score)
    return drift.found


USUAL = [-1.0, -1.0, -1.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.5, 2.0]
ANOTHER = [2.0, 2.0, 2.0, 2.0, -1.0]


def test_traffic_that_stays_the_same_does_not_drift() -> None:
    assert not drifts([USUAL] * 50)
    assert not drifts([USUAL, ANOTHER] * 20)  # a burst is no drift


def test_another_traffic_is_a_drift_after_two_blocks_and_it_stays() -> None:
    assert not drifts([USUAL, ANOTHER])
    assert drifts([USUAL, ANOTHER, ANOTHER])
    assert drifts([ANOTHER, ANOTHER, USUAL, USUAL, USUAL])


def test_the_stability_index_is_that_of_its_formula() -> None:
    assert stability_index((0.5, 0.5), (0.5, 0.5)) == 0
    by_hand = 0.25 * math.log(0.75 / 0.5) - 0.25 * math.log(0.25 / 0.5)
    assert stability_index((0.75, 0.25), (0.5, 0.5)) == pytest.approx(by_hand)
    assert math.isfinite(stability_index((1.0, 0.0), (0.0, 1.0)))


def test_a_model_whose_traffic_has_drifted_gives_way_to_prior_and_the_share_is_kept() -> None:
    usual = {"usual": {"edges": [0.0], "shares": [0.9, 0.1]}}
    difficulty = Scored(Learned(read_model(**usual)), 0.3)
    judged = [difficulty.judge(HARD, None) for _ in range(4000)]
    assert {j.reason.partition("-")[0] for j in judged[:2000]} == {"learned"}
    assert {j.reason.partition("-")[0] for j in judged[2000:]} == {"prior"}
    for start in range(0, 2001, 50):
        sizes = [j.size for j in judged[start : start + 2000]]
        assert abs(sizes.count("large") / 2000 - 0.3) * 100 <= GUARANTEED_POINTS


# --- what is stored -------------------------------------------------------------------------------


def test_an_outcome_is_stored_with_features_and_without_the_prompt() -> None:
    outcome = Outcome(
        time_s=1.5, features=named(features(HARD)), small_right=False, large_right=True
    )
    line = outcome.model_dump_json()
    assert "Python" not in line
    assert Outcome.model_validate_json(line).in_order == features(HARD)


def test_an_outcome_with_other_features_is_refused() -> None:
    others = named(features(HARD)) | {"moon": 1.0}
    with pytest.raises(ValueError, match="moon"):
        Outcome(time_s=1.5, features=others, small_right=False, large_right=True)
