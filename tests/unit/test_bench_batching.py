"""Continuous against static batching: what a replay counts, and how the command shows it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from extproc.bench import batching
from extproc.cli import app
from serving.engine import StepTime
from serving.replay import Request, Setup, Workload, compare, replay

SETUP = Setup(step_time=StepTime(base_s=1.0), max_num_seqs=2)


def test_a_replay_counts_what_happened_in_virtual_time() -> None:
    trace = [Request(0.0, 10, 2), Request(0.25, 10, 5), Request(0.5, 10, 2)]
    continuous = replay(trace, SETUP.engine(static=False))
    # In six steps: the first, first and second, second and third twice, second twice.
    assert continuous.tokens_per_s == pytest.approx(9 / 6)
    assert continuous.mean_batch == pytest.approx((1 + 2 + 2 + 2 + 1 + 1) / 6)
    assert continuous.ttft_ms["p50"] == pytest.approx(1750)
    assert continuous.e2e_ms["p50"] == pytest.approx(3500)
    static = replay(trace, SETUP.engine(static=True))
    # The first alone for two steps; then the others for five, at whose end both have ended.
    assert static.tokens_per_s == pytest.approx(9 / 7)
    assert static.mean_batch == pytest.approx((2 * 1 + 2 * 2 + 3 * 1) / 7)
    assert static.e2e_ms["p50"] == pytest.approx(6500)


def test_a_trace_has_the_same_requests_at_any_rate_only_closer_together() -> None:
    slow, fast = (Workload(requests=50).at_rate(rate) for rate in (1.0, 10.0))
    assert [(r.prompt_tokens, r.tokens) for r in slow] == [
        (r.prompt_tokens, r.tokens) for r in fast
    ]
    assert [r.at_s for r in slow] == pytest.approx([10 * r.at_s for r in fast])
    assert slow != Workload(requests=50, seed=1).at_rate(1.0)


def test_lengths_are_spread_as_they_say() -> None:
    trace = Workload(requests=4000).at_rate(1.0)
    prompts = sorted(request.prompt_tokens for request in trace)
    tokens = sorted(request.tokens for request in trace)
    assert prompts[2000] == pytest.approx(200, rel=0.1)
    assert tokens[2000] == pytest.approx(130, rel=0.1)
    assert prompts[3600] / prompts[2000] == pytest.approx(3.6, rel=0.15), "e^1.28, the 90th"
    assert trace[-1].at_s == pytest.approx(4000, rel=0.1)


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    step_time = StepTime(base_s=0.02, per_prefill_token_s=1e-4)
    return compare(Setup(step_time=step_time), Workload(requests=150), (0.1, 0.9))


def test_under_load_continuous_batching_serves_more_and_sooner(compared: dict[str, Any]) -> None:
    by = {(run["load"], run["batching"]): run for run in compared["runs"]}
    assert len(by) == 4
    for load in (0.1, 0.9):
        for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
            for percentile in ("p50", "p99"):
                continuous, static = (
                    by[load, kind][name][percentile] for kind in ("continuous", "static")
                )
                assert continuous < static
    assert by[0.9, "continuous"]["tokens_per_s"] > 1.5 * by[0.9, "static"]["tokens_per_s"]
    assert by[0.9, "continuous"]["mean_batch"] > by[0.1, "continuous"]["mean_batch"]


def test_the_same_arguments_give_the_same_numbers(compared: dict[str, Any]) -> None:
    step_time = StepTime(base_s=0.02, per_prefill_token_s=1e-4)
    assert compare(Setup(step_time=step_time), Workload(requests=150), (0.1, 0.9)) == compared


def test_the_picture_is_drawn(compared: dict[str, Any], tmp_path: Path) -> None:
    batching.figure(compared).savefig(tmp_path / "batching.svg")
    drawn = (tmp_path / "batching.svg").read_text()
    assert drawn.startswith("<?xml")


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_measured_is_printed_even_if_it_cannot_be_drawn(
    compared: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool
) -> None:
    def broken(result: Any) -> None:
        raise ValueError("no such font")

    monkeypatch.setattr("serving.replay.compare", lambda *_: compared)
    monkeypatch.setattr(batching, "figure", broken)
    command = ["bench", "batching", "--plot", str(tmp_path / "x.svg")]
    done = CliRunner().invoke(app, [*command, *(["--json"] if as_json else [])])
    assert done.exit_code == 1
    assert done.stdout.count("static") >= 2
    assert "x.svg: could not be drawn: no such font" in done.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_shows_all_runs(
    compared: dict[str, Any], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    monkeypatch.setattr("serving.replay.compare", lambda *_: compared)
    done = CliRunner().invoke(app, ["bench", "batching", *(["--json"] if as_json else [])])
    assert done.exit_code == 0
    if as_json:
        shown = json.loads(done.stdout)
        assert shown["bench"] == "batching"
        assert len(shown["runs"]) == 4
    else:
        assert done.stdout.count("│ static") == 4
        assert "wait for that in it" in " ".join(done.stdout.split())
        assert "…" not in done.stdout, "nothing is cut off at 80 columns"
