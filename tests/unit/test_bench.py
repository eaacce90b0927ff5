"""The pure parts of the benchmarks: percentiles, verdicts on ratios, whole answers, tables."""

import asyncio
import gc
import os
import sys
import time
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from extproc.bench import overhead, views
from extproc.bench.bars import Bar, Side, doubt, judge, medians, percentile, turned
from extproc.bench.cli import app
from extproc.bench.contenders import CONTENDERS, Contender, Running
from extproc.bench.entry import Entry
from extproc.bench.envoy import BUFFERED_REQUEST, envoy_config
from extproc.bench.foreign import Skipped
from extproc.bench.lab import BenchError, Lab
from extproc.bench.limits.load import offer
from extproc.bench.load import NUMBER, Job, Outcome, Request, is_whole, prepared, run_job
from extproc.bench.processes import cpu_s, resident_mib
from extproc.bench.report import Result

BAR = Bar("a / b", Side("a", "cpu_us"), Side("b", "cpu_us"), "<", 1.5)


def rounds(*values: float) -> list[dict[str, float]]:
    return [{"cpu_us": value} for value in values]


def test_a_percentile_lies_between_the_values_that_surround_it() -> None:
    values = [float(n) for n in range(1, 102)]
    assert percentile(values, 50) == 51.0
    assert percentile(values, 99) == 100.0
    assert percentile([7.0], 99) == 7.0


def test_a_ratio_is_the_median_of_the_ratios_within_each_round() -> None:
    # Noise that hits both sides of a round alike leaves no trace.
    told = judge(BAR, {"a": rounds(10, 200, 14), "b": rounds(10, 100, 10)})
    assert told["value"] == 1.4
    assert (told["lowest"], told["highest"]) == (1.0, 2.0)
    assert told["holds"] is True


@pytest.mark.parametrize(
    ("wanted", "value", "holds"),
    [("<", 1.49, True), ("<", 1.5, False), (">=", 1.5, True), (">=", 1.49, False)],
)
def test_the_bar_itself_is_not_below_the_bar(wanted: str, value: float, holds: bool) -> None:
    bar = Bar("a / b", BAR.top, BAR.bottom, "<" if wanted == "<" else ">=", 1.5)
    assert judge(bar, {"a": rounds(value), "b": rounds(1.0)})["holds"] is holds


def test_a_ratio_of_what_was_not_measured_has_no_verdict() -> None:
    assert judge(BAR, {"a": rounds(1.0)})["holds"] is None


@pytest.mark.parametrize(
    ("rounds", "count", "says"),
    [
        (3, 1000, None),
        (2, 1000, "had 2 of 1,000"),
        (3, 999, "had 3 of 999"),
        (1, 20, "at least 3 rounds of 1,000 requests, and this run had 1 of 20"),
    ],
)
def test_a_run_that_was_too_short_says_that_its_ratios_are_not_to_be_trusted(
    rounds: int, count: int, says: str | None
) -> None:
    told = doubt(rounds=rounds, count=count, of="requests")
    assert told is None if says is None else told and says in told


def test_medians_are_taken_measure_by_measure() -> None:
    assert medians([{"x": 1, "y": 9}, {"x": 5, "y": 3}, {"x": 2, "y": 4}]) == {"x": 2, "y": 4}


def test_in_three_rounds_each_of_three_is_once_first() -> None:
    assert [turned(["a", "b", "c"], by)[0] for by in range(4)] == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{", False),
        (b"HTTP/1.1 200 OK\r\ncontent-le", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
    ],
)
def test_an_answer_is_whole_by_its_length_or_its_last_chunk(answer: bytes, whole: bool) -> None:
    assert is_whole(bytearray(answer)) is whole


def test_a_numbered_request_keeps_its_length() -> None:
    before, numbered, after = prepared(
        Job("http://127.0.0.1:1", Request(f'{{"n":"{NUMBER}"}}'), requests=1)
    )
    assert numbered
    head, _, body = (before + b"%012d" % 7 + after).partition(b"\r\n\r\n")
    assert body == b'{"n":"000000000007"}'
    assert b"content-length: 20" in head


def test_cpu_time_counts_what_this_process_uses_and_memory_is_there() -> None:
    before, own = cpu_s(os.getpid()), time.process_time()
    while time.process_time() - own < 0.05:
        pass
    assert 0.04 < cpu_s(os.getpid()) - before < 1.0
    assert resident_mib(os.getpid()) > 5


def test_the_plain_envoy_has_no_processor_unless_one_is_asked_for() -> None:
    made = [
        envoy_config(1, 2, "http://127.0.0.1:3", Path("/s"), m) for m in (None, BUFFERED_REQUEST)
    ]
    assert "ext_proc" not in str(made[0])
    assert "ext_proc" in str(made[1])


def test_every_bar_of_overhead_names_contenders_that_exist() -> None:
    assert {side.contender for bar in overhead.BARS for side in (bar.top, bar.bottom)} <= set(
        CONTENDERS
    )


def test_the_tables_show_a_bar_that_is_missed() -> None:
    told = {
        "envoy_cpu_us": 40.0,
        "all_cpu_us": 190.0,
        "processor_cpu_us": 150.0,
        "reads_per_chunk": 1.0,
        "chunks": 8000,
    }
    result: Result = {
        "contenders": {"echo": told},
        "ratios": [judge(BAR, {"a": rounds(3.0), "b": rounds(1.0)})],
        "doubt": doubt(rounds=2, count=8000, of="chunks"),
    }
    console = Console(width=100)
    with console.capture() as seen:
        for table in views.token_tables(result):
            console.print(table)
    text = seen.get()
    for part in ("150.0", "8,000", "3.00", "< 1.5", "NO", "Do not trust", "reads/chunk:"):
        assert part in text


async def test_the_load_generator_fails_a_job_at_a_wrong_answer() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        job = Job(f"http://127.0.0.1:{port}", Request("{}"), requests=5, connections=1)
        outcome = await run_job(job)
    assert outcome.answered == 1
    assert outcome.wrong[0].startswith("HTTP/1.1 503")


@pytest.mark.parametrize(
    ("answered", "wrong"),
    [(5, ["HTTP/1.1 503"]), (4, [])],
    ids=["a wrong answer", "an answer too few"],
)
def test_a_contender_that_answers_otherwise_than_expected_ends_the_benchmark(
    answered: int, wrong: list[str]
) -> None:
    class BrokenLab:
        def load(self, job: Job) -> Outcome:
            return Outcome(job.requests, answered, 1.0, [1] * answered, 5, 0, wrong)

    running = Running("http://127.0.0.1:1", {}, Request("{}"), Request("{}"))
    entry = Entry(cast(Lab, BrokenLab()), "broken", running)
    with pytest.raises(BenchError, match="broken"):
        entry.load(5)


def test_the_help_of_overhead_names_every_contender() -> None:
    shown = "".join(CliRunner().invoke(app, ["overhead", "--help"]).output.split())
    for name, contender in CONTENDERS.items():
        assert f"{name}({contender.what.replace(' ', '')})" in shown


def test_a_run_in_which_every_contender_is_left_out_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(lab: Lab, upstream: str) -> Running:
        raise Skipped("cannot be installed: no network")

    class EmptyLab:
        def upstream(self) -> str:
            return "http://127.0.0.1:1"

    monkeypatch.setitem(CONTENDERS, "litellm", Contender("never there", start, foreign=True))
    with pytest.raises(BenchError, match=r"nothing is left to measure: litellm: .*no network"):
        overhead.run(cast(Lab, EmptyLab()), names=["litellm"], requests=20, rounds=1)


BENCHES = ("overhead", "tokens", "batching")


@pytest.fixture
def never_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    def measures(*_: object, **__: object) -> None:
        raise AssertionError("it measures")

    for name in ("extproc.bench.overhead.run", "extproc.bench.tokens.run"):
        monkeypatch.setattr(name, measures)
    monkeypatch.setattr("extproc.bench.commands.lab", measures)
    monkeypatch.setattr("serving.replay.compare", measures)


@pytest.mark.usefixtures("never_measures")
@pytest.mark.parametrize("bench", BENCHES)
def test_without_matplotlib_a_picture_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, bench: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, [bench, "--plot", "x.svg"])
    assert done.exit_code == 1
    assert "pip install 'forebay[bench]'" in done.output


@pytest.mark.usefixtures("never_measures")
@pytest.mark.parametrize("bench", BENCHES)
@pytest.mark.parametrize(
    ("plot", "says"),
    [
        ("x.xyz", "ends in .svg, .png, .pdf"),
        ("x", "ends in .svg, .png, .pdf"),
        ("missing/x.svg", "there is no folder missing"),
        ("folder.svg", "is a directory"),
        ("locked/x.svg", "may not be written to"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bench: str, plot: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("folder.svg", "locked"):
        (tmp_path / folder).mkdir()
    may = os.access  # root may write anywhere, so permissions are told here
    monkeypatch.setattr(os, "access", lambda at, how: Path(at).name != "locked" and may(at, how))
    done = CliRunner().invoke(app, [bench, "--plot", plot])
    assert done.exit_code in (1, 2)
    assert says in done.output


def test_an_end_of_the_limits_bench_leaves_no_request_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def interrupt() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise BenchError("stopped")

    async def run() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async def never() -> None:
            await asyncio.sleep(60)

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server:
            await offer(
                [f"http://{host}:{port}"],
                "k",
                per_s=100_000,
                seconds=60,
                events=[(0.0, never)],
                check=interrupt,
            )

    looks = 0
    with pytest.raises(BenchError, match="stopped"):
        asyncio.run(run())
    gc.collect()
    assert caplog.messages == []
