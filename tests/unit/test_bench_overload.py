"""`forebay bench overload`: its arrivals, what it counts, what it doubts, and its clients."""

import asyncio
import json
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from extproc.bench.bars import verdict
from extproc.bench.overload import flow
from extproc.bench.overload.arrivals import Phase, arrivals
from extproc.bench.overload.contenders import CONTENDERS
from extproc.bench.overload.load import Answer, Job, judged, run_job
from extproc.bench.overload.measures import Window, best, measure, recovery_s, service
from extproc.bench.overload.setup import Setup
from extproc.bench.overload.views import figure, tables
from extproc.cli import app
from serving.engine import StepTime

SLO_S = 1.0
WINDOW = Window(begins_s=10.0, ends_s=20.0, turn_ends_s=20.0)
SETUP = Setup(
    slots=16,
    decode_ms=20.0,
    mean_tokens=50.0,
    slo_s=SLO_S,
    seconds=10.0,
    test_seconds=60.0,
    seed=1,
)


def whole(due_s: float, ttft_s: float, took_s: float, tokens: int = 1) -> Answer:
    return Answer(due_s, tokens, 0.0, ttft_s, due_s + took_s, 200, "whole")


def refused(due_s: float) -> Answer:
    return Answer(due_s, 1, 0.0, None, due_s, 429, "refused")


# --- arrivals -------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_arrivals_and_another_one_others() -> None:
    phases = (Phase(20.0, 5.0), Phase(2.0, 5.0))
    assert arrivals(phases, 50.0, 1) == arrivals(phases, 50.0, 1)
    assert arrivals(phases, 50.0, 1) != arrivals(phases, 50.0, 2)


def test_arrivals_are_poisson_at_the_rate_of_their_phase() -> None:
    made = arrivals((Phase(20.0, 500.0), Phase(2.0, 500.0)), 50.0, 1)
    due_s = [one.due_s for one in made]
    assert due_s == sorted(due_s)
    first = [s for s in due_s if s < 500.0]
    assert len(first) == pytest.approx(10_000, rel=0.03)
    assert len(made) - len(first) == pytest.approx(1_000, rel=0.1)
    gaps = [after - before for before, after in pairwise(first)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance / mean**2 == pytest.approx(1.0, rel=0.08)  # exponential
    assert max(due_s) < 1000.0


def test_lengths_are_geometric_and_short_runs_of_them_stray_little() -> None:
    tokens = [one.tokens for one in arrivals((Phase(100.0, 200.0),), 50.0, 1)][:20_000]
    assert min(tokens) == 1
    mean = sum(tokens) / len(tokens)
    assert mean == pytest.approx(50.0, rel=0.01)
    # P(length > n) = (1 - 1/mean)^n
    for n in (10, 50, 150):
        share = sum(one > n for one in tokens) / len(tokens)
        assert share == pytest.approx((1 - 1 / 50.0) ** n, abs=0.01)
    means = [sum(tokens[at : at + 200]) / 200 for at in range(0, 20_000 - 200, 200)]
    strays = (sum((one - 50.0) ** 2 for one in means) / len(means)) ** 0.5
    assert strays < 0.6 * 50.0 / 200**0.5  # of what independent draws would


def test_a_mean_of_one_token_is_one_token() -> None:
    assert {one.tokens for one in arrivals((Phase(10.0, 5.0),), 1.0, 1)} == {1}


# --- what is counted ------------------------------------------------------------------------------


def test_goodput_counts_whole_answers_that_end_in_the_window_and_began_in_time() -> None:
    answers = [
        whole(5.0, 0.1, 5.5, tokens=30),  # came in the warm-up, ended in the window
        whole(12.0, 1.0, 2.0, tokens=70),
        whole(12.0, 1.01, 2.0),  # began late
        whole(19.0, 0.1, 1.5),  # ended after the window
        whole(8.0, 0.1, 1.0),  # ended before it
        refused(12.0),
        Answer(12.0, 1, 0.0, 0.1, 13.0, 200, "failed"),
    ]
    measured = measure(answers, WINDOW, SLO_S)
    assert measured["goodput_per_s"] == pytest.approx(2 / 10.0)
    assert measured["goodput_tokens_per_s"] == pytest.approx(100 / 10.0)


def test_shares_and_ttft_are_of_requests_whose_fate_is_known_when_the_turn_ends() -> None:
    answers = [
        whole(10.0, 0.2, 1.0),
        whole(11.0, 0.4, 1.0),
        refused(12.0),
        Answer(13.0, 1, 0.0, None, 14.0, None, "failed"),
        refused(19.5),  # came less than an SLO before the end
        refused(9.0),  # came in the warm-up
    ]
    measured = measure(answers, WINDOW, SLO_S)
    assert measured["requests"] == 4
    assert measured["offered_per_s"] == pytest.approx(4 / 9.0)
    assert measured["shed_share"] == pytest.approx(1 / 4)
    assert measured["failed_share"] == pytest.approx(1 / 4)
    assert measured["accepted_within_slo_share"] == pytest.approx(2 / 3)
    # The failed one had waited a second.
    assert measured["ttft_p50_s"] == pytest.approx(0.4)
    assert measured["ttft_at_least"] is True


def test_who_still_waits_at_the_end_counts_with_the_time_waited_so_far() -> None:
    measured = measure([Answer(12.0, 1)], WINDOW, SLO_S)
    assert measured["ttft_p99_s"] == pytest.approx(8.0)
    assert measured["ttft_at_least"] is True
    measured = measure([whole(12.0, 0.5, 1.0)], WINDOW, SLO_S)
    assert measured["ttft_at_least"] is False


def test_where_all_is_refused_there_is_no_ttft() -> None:
    measured = measure([refused(12.0)], WINDOW, SLO_S)
    assert (measured["ttft_p99_s"], measured["shed_share"]) == (None, 1.0)


@pytest.mark.parametrize(
    ("light", "took_s"),
    [
        ([whole(20.5, 0.1, 1.0), whole(21.0, 0.1, 1.0)], 0.0),
        ([refused(20.5), whole(21.0, 0.1, 1.0), whole(23.0, 0.1, 1.0)], 1.0),
        ([whole(20.5, 0.1, 1.0), whole(21.0, 1.5, 2.0), whole(23.0, 0.1, 1.0)], 3.0),
        ([whole(20.5, 0.1, 1.0), refused(21.0)], None),
        ([Answer(20.5, 1, 0.0, 0.3)], 0.0),  # its answer was running when the turn ended
        ([Answer(20.5, 1)], None),
        ([], None),
    ],
)
def test_recovery_is_when_the_first_request_came_from_which_on_all_was_well(
    light: list[Answer], took_s: float | None
) -> None:
    assert recovery_s([refused(19.0), *light], 20.0, SLO_S) == took_s


def test_service_times_are_of_whole_answers_that_ended_in_the_window() -> None:
    answers = [whole(10.0, 0.1, 1.0), whole(11.0, 0.1, 3.0), whole(1.0, 0.1, 2.0), refused(12.0)]
    told = service(answers, WINDOW)
    assert told == {"mean_s": 2.0, "scv": pytest.approx(0.25), "answers": 2}
    assert service([], WINDOW)["mean_s"] is None


def test_capacity_is_the_best_goodput_of_the_sweep() -> None:
    points = [{"goodput_per_s": 3.0}, {"goodput_per_s": 5.0}, {"goodput_per_s": 4.0}]
    assert best(points) == {"goodput_per_s": 5.0}


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wanted", "measured", "holds"),
    [
        (0.95, ">=", True, True),
        (0.949, ">=", True, False),
        (0.95, "<=", True, True),
        (0.951, "<=", True, False),
        (None, "<=", True, False),  # it did not recover
        (None, "<=", False, None),
    ],
)
def test_a_bar_that_was_measured_either_holds_or_not(
    value: float | None, wanted: Literal["<=", ">="], measured: bool, holds: bool | None
) -> None:
    assert verdict("x", value, wanted, 0.95, measured=measured)["holds"] is holds


def test_a_forebay_that_does_not_recover_misses_its_bar_and_one_left_out_has_none() -> None:
    test = {"goodput_of_capacity": 1.0, "ttft_p99_s": 0.9, "recovery_s": None}
    assert [bar["holds"] for bar in flow.bars({"forebay": test}, SLO_S)] == [True, True, False]
    assert [bar["holds"] for bar in flow.bars({"envoy": test}, SLO_S)] == [None, None, None]


def turn(late_s: float = 0.001, envoy: float = 0.2, machine: float = 0.5) -> dict[str, Any]:
    return {"late_p99_s": late_s, "cores_used": {"envoy": envoy, "machine": machine}}


@pytest.mark.parametrize(
    ("turns", "answers", "says"),
    [
        ([turn(), turn()], 800.0, None),
        ([turn(), turn(late_s=0.051)], 800.0, "51 ms late"),
        ([turn(envoy=0.81), turn()], 800.0, "envoy used 81% of a core"),
        ([turn(machine=1.9)], 800.0, "95% of all cores"),
        ([turn()], 799.0, "room for 799 answers, and wants 800"),
    ],
)
def test_a_machine_too_slow_or_a_test_too_short_makes_a_run_doubtful(
    turns: list[dict[str, Any]], answers: float, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    told = flow.doubt(turns, SLO_S, test_answers=answers)
    assert told is None if says is None else told and says in told


# --- the setup ------------------------------------------------------------------------------------


def test_the_nominal_rate_is_slots_by_service_time() -> None:
    assert (SETUP.service_s, SETUP.nominal_per_s) == (1.0, 16.0)


def test_with_a_profile_the_service_time_is_that_of_a_full_server() -> None:
    step_time = StepTime(base_s=0.01, per_decode_seq_s=0.001)
    made = Setup(2, 20.0, 50.0, SLO_S, 10.0, 60.0, 1, step_time=step_time)
    assert made.service_s == pytest.approx(50 * 0.012)


def test_every_contender_states_what_is_specific_to_it() -> None:
    for name, contender in CONTENDERS.items():
        assert bool(contender.settings(16, SLO_S)) is (name != "envoy")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "nginx"), "there are envoy, adaptive-concurrency"),
        (("--seconds", "1.5"), "two SLOs"),
        (("--profile", "p.json", "--decode-ms", "5"), "leave out --decode-ms"),
        (("--profile", "/nowhere/p.json"), "No such file"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, ["bench", "overload", *arguments], env={"COLUMNS": "300"})
    assert done.exit_code != 0
    assert says in done.output


# --- the clients ----------------------------------------------------------------------------------

STREAM = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b'data: {"choices":[{"finish_reason":"length"}]}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n'
)


@pytest.mark.parametrize(
    ("status", "answer", "outcome"),
    [
        (200, STREAM, "whole"),
        (200, STREAM.replace(b"length", b"abort"), "failed"),
        (200, STREAM.replace(b"data: [DONE]", b""), "failed"),
        (429, b"", "refused"),
        (503, b"", "refused"),
        (404, b"nothing here", "failed"),
    ],
)
def test_only_a_stream_that_came_to_its_own_end_is_whole(
    status: int, answer: bytes, outcome: str
) -> None:
    assert judged(status, answer)[0] == outcome


def run_against(answer: Any, phases: tuple[Phase, ...], **more: Any) -> list[Answer]:
    """A job against a server that does `answer(reader, writer, how many were before)`."""

    async def both() -> list[Answer]:
        count = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            before, count = count, count + 1
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer, before)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            outcome = await run_job(Job(f"http://127.0.0.1:{port}", "m", phases, 5.0, 1, **more))
        return outcome.answers

    return asyncio.run(both())


async def client_gone(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        await reader.read()


def test_clients_do_not_wait_for_each_other_and_tell_what_became_of_each() -> None:
    async def answer(reader: Any, writer: asyncio.StreamWriter, before: int) -> None:
        if before == 0:
            writer.write(b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\n{}")
        elif before == 1:
            writer.write(STREAM[:80])  # and cut
        elif before == 2:
            await client_gone(reader)
        else:
            writer.write(STREAM[:90])
            await asyncio.sleep(0.3)
            writer.write(STREAM[90:])

    answers = run_against(answer, (Phase(40.0, 0.4),), watch_s=0.8)
    # By connection, which need not be the order in which they were to be sent.
    how = Counter(one.outcome for one in answers)
    assert (how["refused"], how["failed"], how["open"]) == (1, 1, 1)
    assert how["whole"] == len(answers) - 3 > 0
    assert all(one.ttft_s is None for one in answers if one.outcome == "open")
    last = next(one for one in reversed(answers) if one.outcome == "whole")
    assert last.ttft_s is not None
    assert last.ended_s is not None
    assert last.ttft_s < 0.3 <= last.ended_s - last.due_s


def test_a_client_that_is_out_of_patience_has_failed() -> None:
    async def answer(reader: Any, writer: asyncio.StreamWriter, before: int) -> None:
        writer.write(STREAM[:90])
        await client_gone(reader)

    answers = run_against(answer, (Phase(40.0, 0.1),), watch_s=0.4, patience_s=0.2)
    assert {(one.outcome, one.why) for one in answers} == {("failed", "out of patience")}
    assert all(0.15 < one.ended_s - one.due_s < 0.4 for one in answers if one.ended_s)


def test_where_nobody_listens_requests_have_failed() -> None:
    outcome = asyncio.run(run_job(Job("http://127.0.0.1:1", "m", (Phase(40.0, 0.5),), 5.0, 1)))
    assert outcome.answers
    assert {one.outcome for one in outcome.answers} == {"failed"}


# --- how it looks ---------------------------------------------------------------------------------


def told(load: float, **more: Any) -> dict[str, Any]:
    return {
        "load": load,
        "goodput_of_capacity": 0.5,
        "goodput_per_s": 5.0,
        "goodput_tokens_per_s": 250.0,
        "ttft_p50_s": 0.1,
        "ttft_p99_s": 0.2,
        "ttft_at_least": True,
        "shed_share": 0.25,
        "failed_share": 0.0,
        "transitions": None,
        **more,
    }


def test_the_result_can_be_shown_and_drawn_where_something_was_not_measured() -> None:
    nothing = {"ttft_p50_s": None, "ttft_p99_s": None, "shed_share": None}
    result = {
        "settings": flow.settings(SETUP),
        "service": {"mean_s": 1.0, "scv": 0.9, "answers": 10},
        "capacity": {"per_s": 10.0, "contender": "envoy", "load_of_nominal": 0.9},
        "contenders": {"envoy": {"turns": [told(1.0, **nothing), told(3.0, recovery_s=None)]}},
        "bars": flow.bars({}, SLO_S),
        "doubt": "Do not trust these",
    }
    json.dumps(result)
    shown = list(tables(result))
    assert [len(table.columns) for table in shown] == [3, 3, 3, 6, 4]
    assert list(shown[3].columns[5].cells) == ["over 10 s"]
    assert figure(result).get_axes()
