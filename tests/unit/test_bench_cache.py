"""`forebay bench cache`: what it reads, counts, promises and shows. Its decisions have tests
of their own; here the vectors are of words."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from extproc.bench.cache import data, flow, quality, times, views
from extproc.bench.cache.data import Pair, PairFile, Stateful, StatefulFile
from extproc.bench.cache.rig import Rig
from extproc.bench.cache.vectors import Known
from extproc.bench.lab import BenchError
from extproc.cli import app
from extproc.embedders import EmbedderUnavailable
from extproc.embedders.protocol import Vector, unit_vector

EGG, SAME, TWO = "How do I boil an egg?", "How can I boil an egg?", "How do I boil two eggs?"
ORDER = "What did I just order?"
LONG = "too long"

PAIRS = PairFile(
    "semantic-pairs.jsonl",
    [
        Pair("number", EGG, TWO, False),
        Pair("stateful", ORDER, ORDER, False),
        Pair("polite", EGG, SAME, True),
        Pair("other", EGG, "Who wrote Hamlet?", True),
    ],
    True,
)


def known(*texts: str) -> Known:
    vectors: dict[str, Vector | EmbedderUnavailable] = {}
    for text in texts:
        vector = np.zeros(384, np.float32)
        for word in text.lower().strip("?").split():
            vector[zlib.crc32(word.encode()) % 384] += 1
        vectors[text] = unit_vector(vector)
    vectors[LONG] = EmbedderUnavailable("too_long", "300 tokens")
    return Known("words", vectors)


def of(file: PairFile) -> Known:
    return known(*(text for pair in file.pairs for text in (pair.stored, pair.asked)))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- reading --------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, where no checkout has files beside."""
    monkeypatch.setattr(data, "OWN", tmp_path / "none")
    return tmp_path


def test_what_is_not_there_is_said(alone: Path) -> None:
    read = data.read(alone, None)
    assert set(read.skipped) == {
        "semantic-pairs*.jsonl",
        "semantic-fresh.jsonl",
        "qqp-similar-dev.jsonl",
        "stateful-*.jsonl",
        "gptcache-mock.json",
    }
    assert str(alone) in read.skipped["gptcache-mock.json"]


def test_files_are_read_to_the_line_that_is_asked_for(alone: Path) -> None:
    write(
        alone / "semantic-pairs-kept.jsonl",
        [
            {"kind": "number", "cached": EGG, "query": TWO, "same": False},
            {"kind": "polite", "cached": EGG, "query": SAME, "same": True},
        ],
    )
    write(alone / "qqp-similar-dev.jsonl", [{"origin": EGG, "similar": SAME}])
    write(alone / "stateful-texts.jsonl", [{"text": ORDER, "stateful": True}])
    write(alone / "stateful-kept.jsonl", [{"text": EGG, "stateful": False}])
    (alone / "gptcache-mock.json").write_text(json.dumps([{"origin": "a", "similar": "b"}] * 3))
    read = data.read(alone, 1)
    kept, duplicates = read.pairs
    assert (kept.name, kept.has_bar) == ("semantic-pairs-kept.jsonl", True)
    assert kept.pairs == [Pair("number", EGG, TWO, False)]
    assert (duplicates.pairs, duplicates.has_bar) == ([Pair("duplicate", EGG, SAME, True)], False)
    assert [(file.name, file.trained_on) for file in read.stateful] == [
        ("stateful-kept.jsonl", False),
        ("stateful-texts.jsonl", True),
    ]
    assert read.statements == [("a", "b")]
    assert read.skipped.keys() == {"semantic-fresh.jsonl"}
    assert list(read.texts()) == [EGG, TWO, EGG, SAME, EGG, ORDER, "a", "b"]


def test_a_file_that_cannot_be_read_is_named(alone: Path) -> None:
    (alone / "stateful-x.jsonl").write_text("{")
    with pytest.raises(BenchError, match=r"stateful-x\.jsonl"):
        data.read(alone, None)


def test_a_folder_that_is_named_must_be_there(alone: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "cache", "--data", str(alone / "nowhere")])
    assert done.exit_code == 2


def test_without_any_text_nothing_is_judged(alone: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "cache", "--data", str(alone)])
    assert done.exit_code == 1
    assert "name a folder with --data" in done.stderr


# --- counting -------------------------------------------------------------------------------------


async def test_hits_of_the_cache_and_of_a_threshold_are_counted_apart() -> None:
    told = await quality.pairs(PAIRS, of(PAIRS))
    assert (told["near_misses"], told["false_hits"]) == (2, 0)
    assert (told["paraphrases"], told["true_hits"], told["true_hit_share"]) == (2, 1, 0.5)
    assert told["threshold_false_hits"] == 1  # the very same text, though it has no answer
    assert told["paraphrases_missed_by"] == {"no_candidate": 1}
    by_kind = {kind["kind"]: kind for kind in told["kinds"]}
    assert (by_kind["polite"]["hits"], by_kind["polite"]["pairs"]) == (1, 1)
    assert (by_kind["stateful"]["hits"], by_kind["stateful"]["threshold_hits"]) == (0, 1)
    low, *_, high = told["thresholds"]
    assert (low["threshold"], low["true_hits"], low["false_hits"]) == (0.8, 1, 1)
    assert (high["threshold"], high["true_hits"], high["false_hits"]) == (0.99, 0, 1)


async def test_a_false_hit_is_seen_and_its_line_told() -> None:
    wrong = PairFile("x.jsonl", [Pair("wrong", EGG, SAME, False)], False)
    told = await quality.pairs(wrong, of(wrong))
    assert (told["false_hits"], told["false_hit_lines"]) == (1, [1])


def test_texts_that_depend_on_more_are_told_apart_and_long_ones_counted() -> None:
    texts = [Stateful(ORDER, True), Stateful(EGG, False), Stateful(TWO, True), Stateful(LONG, True)]
    told = quality.stateful(StatefulFile("stateful-x.jsonl", texts, False), known(ORDER, EGG, TWO))
    assert (told["texts"], told["not_read_whole"], told["stateful"]) == (3, 1, 2)
    assert (told["precision"], told["recall"]) == (1.0, 0.5)


async def test_statements_are_right_wrong_or_missed() -> None:
    rows = [(EGG, SAME), (TWO, SAME), ("Who wrote Hamlet?", LONG)]
    told = await quality.statements(rows, known(EGG, SAME, TWO, "Who wrote Hamlet?"))
    for way in ("decision", "gate_alone"):
        assert told[way] == {"right": 1, "wrong": 1, "missed": 1, "wrong_share": 0.5}
    assert told["may_be_found"] == 3
    assert told["missed_by"] == {"no_vector": 1}
    assert told["threshold_0.90"] == {"right": 0, "wrong": 0, "missed": 3, "wrong_share": None}


async def test_the_decision_is_timed_with_its_parts() -> None:
    told = await times.decision(PAIRS.pairs, of(PAIRS))
    assert told["questions_stored"] == 1  # one text thrice, and one that is never stored
    assert told["decisions"] == 4
    assert 0 < told["p50_us"] <= told["p99_us"] <= told["max_us"]
    for part in told["parts"].values():
        assert 0 < part["p50_us"] < told["max_us"]


async def test_a_rig_gives_what_was_stored() -> None:
    rig = Rig(known(EGG, SAME))
    assert await rig.store(EGG, "Seven minutes.", "ann")
    assert (await rig.ask(SAME, "ann")).answer == "Seven minutes."
    assert (await rig.ask(SAME, "bob")).answer is None


# --- promising and showing ------------------------------------------------------------------------


async def result(*, pairs: bool = True) -> dict[str, Any]:
    words = of(PAIRS)
    told: dict[str, Any] = {
        "settings": {"plain_threshold": quality.PLAIN},
        "pairs": [await quality.pairs(PAIRS, words)] if pairs else [],
        "stateful": [
            quality.stateful(
                StatefulFile("stateful-x.jsonl", [Stateful(ORDER, True)], not pairs), words
            )
        ],
        "statements": await quality.statements([(EGG, SAME)], words) if pairs else None,
        "decision": await times.decision(PAIRS.pairs, words) if pairs else None,
        "embedding": {
            "p50_ms": 5.0,
            "p99_ms": 9.0,
            "loop_lag_p50_ms": 0.1,
            "loop_lag_p99_ms": 21.0,
        },
        "exact": {"memory": await times.exact_in_memory(), "redis": None},
        "skipped": {"exact cache in Redis": "there is none"},
    }
    told["bars"], told["doubt"] = flow.bars(told), flow.doubt(None, told["decision"])
    return told


async def test_each_promise_is_held_or_not() -> None:
    held = {bar["what"]: bar["holds"] for bar in (await result())["bars"]}
    assert held["semantic-pairs.jsonl: false hits"] is True
    assert held["semantic-pairs.jsonl: share of paraphrases hit"] is False
    assert held["stateful-x.jsonl: recall"] is True
    assert held["gptcache-mock.json, decision: wrong, of 1 hits"] is True
    assert held["event-loop lag while embedding is busy, p99, ms"] is False
    assert None not in held.values()


async def test_what_was_not_there_promises_nothing() -> None:
    """Nor do texts that the model was made with."""
    bars = (await result(pairs=False))["bars"]
    lag = "event-loop lag while embedding is busy, p99, ms"
    assert {bar["holds"] for bar in bars if bar["what"] != lag} == {None}
    assert any("not trained on" in bar["what"] for bar in bars)


def test_a_run_of_some_lines_says_so() -> None:
    assert "20 lines" in str(flow.doubt(20, {"decisions": 1000}))
    assert "500 decisions" in str(flow.doubt(None, {"decisions": 20}))
    assert flow.doubt(None, {"decisions": 1000}) is None


async def test_the_tables_show_all_and_the_picture_is_drawn(tmp_path: Path) -> None:
    told = await result()
    titles = [str(table.title) for table in views.tables(told)]
    assert titles[-2:] == ["What is wanted", "Left out"]
    assert "semantic-pairs.jsonl, by kind" in titles
    views.figure(told).savefig(tmp_path / "cache.svg")
    assert (tmp_path / "cache.svg").read_text().startswith("<?xml")
    first, *_ = views.tables(await result(pairs=False))
    assert str(first.title).startswith("Texts")
