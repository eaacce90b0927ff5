"""`forebay bench routing`: what it reads, counts, promises and shows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from extproc.bench.lab import BenchError
from extproc.bench.routing import data, flow, quality, share, subjects, times, views
from extproc.cli import app
from extproc.learning import apgr

SUBJECTS = ("law", "birds", "sums", "towns")


def line(number: int, **changes: Any) -> dict[str, Any]:
    """Two benches; in both the large model helps with sums."""
    rng = np.random.default_rng(number)
    subject = SUBJECTS[number // 2 % 4]
    hard = rng.random() < (0.8 if subject == "sums" else 0.1)
    text = f"What is {number} + {number}?" if subject == "sums" else f"Who saw the {subject} first?"
    prompt = text + " Say it" * int(rng.integers(1, 9))
    bench = "exam" if number % 2 else "quiz"
    weak, strong = (False, True) if hard else (bool(rng.random() < 0.95), True)
    return {
        "bench": bench,
        "prompt": prompt,
        "weak": weak,
        "strong": strong,
        "subject": subject,
    } | changes


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    (folder / data.FILE).write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apgr, "DRAWS", 100)
    monkeypatch.setattr(quality, "REPEATS", 1)
    monkeypatch.setattr(share, "_SEEDS", 1)
    monkeypatch.setattr(share, "_ORDERS", 2)
    monkeypatch.setattr(share, "_REQUESTS", 4000)
    monkeypatch.setattr(times, "_DECISIONS", 20)
    monkeypatch.setattr(times, "SIZES", (10, 2000))


def test_questions_are_read_with_their_subjects(tmp_path: Path) -> None:
    found = data.read(write(tmp_path, [line(n) for n in range(8)]))
    assert found is not None
    assert found.subjects == [each for each in SUBJECTS for _ in range(2)]
    assert found.of_bench("exam").prompts == found.prompts[1::2]
    numbers = found.subject_numbers()
    assert numbers is not None
    assert numbers.tolist() == [1, 1, 0, 0, 2, 2, 3, 3]


def test_where_a_subject_is_not_known_none_is_left_out(tmp_path: Path) -> None:
    found = data.read(write(tmp_path, [line(n, subject=None) for n in range(6)]))
    assert found is not None
    assert found.subject_numbers() is None


def test_the_subjects_of_the_known_file_are_those_of_mmlu() -> None:
    names = subjects.subjects()
    assert (len(names), len(set(names))) == (2301, 57)
    assert names == sorted(names)
    assert names.count("professional_law") == 274


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    write(tmp_path, [line(0), line(1, weak=1)])
    with pytest.raises(BenchError, match=r"line 2: weak"):
        data.read(tmp_path)


def test_the_whole_bench(tmp_path: Path, quick: None) -> None:
    write(tmp_path, [line(n) for n in range(1200)])
    done = CliRunner().invoke(app, ["bench", "routing", "--data", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(each["questions"], each["learned_from"]) for each in told["sets"]] == [
        ("pooled", "folds"),
        ("exam", "folds"),
        ("quiz", "folds"),
        ("exam", "other subjects"),
        ("exam, less two subjects", "folds"),
        ("quiz", "other subjects"),
        ("quiz, less two subjects", "folds"),
        ("quiz", "all of exam"),
        ("exam", "all of quiz"),
    ]
    pooled = told["sets"][0]
    assert pooled["apgr"]["learned"]["value"] > 0.65
    assert pooled["learned_more_than"]["length"]["low"] > 0
    assert abs(pooled["apgr"]["random"]["value"] - 0.5) < 0.1
    assert told["sets"][3]["intervals_over"] == "subjects"
    assert "sums" in told["sets"][4]["left_out"]
    assert told["sets"][3]["apgr"]["learned"]["value"] < 0.6  # of sums it has seen none
    assert told["share"]["cost"]["share_sent"] == pytest.approx(0.3, abs=0.03)
    holds = {bar["what"]: bar["holds"] for bar in told["bars"]}
    assert holds["APGR of learned, pooled"] is True
    assert holds["APGR of learned, mmlu"] is None
    assert len(list(views.tables(told))) == 5
    assert views.figure(told).axes


@pytest.mark.parametrize(
    ("value", "sd", "doubted"),
    [
        (0.648, 0.0017, True),
        (0.652, 0.0017, True),
        (0.648, 0.0005, False),
        (0.66, 0.0017, False),
        (0.648, None, False),
    ],
)
def test_a_bar_that_other_folds_could_decide_otherwise_is_doubted(
    value: float, sd: float | None, doubted: bool
) -> None:
    told: dict[str, Any] = {
        "questions": "pooled",
        "learned_from": "folds",
        "apgr": {"learned": {"value": value}},
        "by_folding_sd": sd,
    }
    other_way = told | {"learned_from": "other subjects", "by_folding_sd": 1.0}
    found = flow.doubt([other_way, told])
    assert (found is not None and "pooled" in found) is doubted


def test_how_much_the_foldings_differ_is_told() -> None:
    assert quality._sd_of_mean([0.64, 0.65, 0.66]) == pytest.approx(0.01 / 3**0.5)
    assert quality._sd_of_mean([0.65]) is None


def test_without_the_file_the_rest_is_measured_and_it_says_so(tmp_path: Path, quick: None) -> None:
    result = flow.run(tmp_path)
    assert result["sets"] == []
    assert "no quality is measured" in result["skipped"][data.FILE]
    assert [bar["holds"] for bar in result["bars"][:2]] == [None, None]
    assert result["bars"][2]["holds"] is True
    assert result["decision"]["by_size"][0]["learned"]["p50_ms"] > 0
    assert len(list(views.tables(result))) == 4


def test_the_worst_window_is_found() -> None:
    class Fixed:
        def __init__(self, share: float) -> None:
            self.calls = 0

        def is_large(self, score: float) -> bool:
            return score > 0

    large = [0.0] * 3000 + [1.0] * 1000 + [0.0] * 3000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share, "ShareKeeper", Fixed)
        assert share.worst_error(large, 0.1) == pytest.approx(40)


def test_too_short_a_stream_is_no_test_of_a_share() -> None:
    with pytest.raises(ValueError, match="fewer than 2000"):
        share.worst_error([0.0] * 1999, 0.3)
