"""`forebay plan`: what it reads, what it advises, how it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from extproc.cli import app
from extproc.config import AdmissionConfig, Config, PoolConfig
from extproc.gateway import Gateway
from tests.unit.admin_port import admin_port

GIVEN = ("--slots", "16", "--service-mean", "6.3s", "--arrivals", "2.5", "--ttft", "1s")
ASKED = ("--arrivals", "2.5", "--ttft", "1s")


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["plan", *args])


def planned(*args: str) -> dict[str, Any]:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_advice_is_that_of_the_theory() -> None:
    result = planned(*GIVEN)
    assert result["load"] == pytest.approx(0.984, abs=0.001)
    assert result["knee"]["load"] == pytest.approx(0.574, abs=0.001)
    assert result["slots_needed"] == 24
    recommended = result["marks"]["recommended"]
    assert (recommended["high_water"], recommended["low_water"]) == (0, 0)
    assert recommended["in_time"] == pytest.approx(0.832, abs=0.001)
    assert "present" not in result["marks"], "nobody said what they are"


def test_what_the_prefill_takes_may_not_be_waited() -> None:
    short = planned(*GIVEN, "--prefill", "400ms")
    assert short["plan"]["wait_limit_s"] == pytest.approx(0.6)
    assert short["knee"]["load"] < planned(*GIVEN)["knee"]["load"]


def test_overload_has_no_wait_and_still_an_answer() -> None:
    result = planned(*GIVEN, "--arrivals", "7.6")
    assert result["without_a_limit"] == {
        "waiting_share": 1.0,
        "wait_mean_s": None,
        "wait_percentile_s": None,
    }
    assert result["marks"]["recommended"]["utilisation"] > 0.95
    assert "without end" in run(*GIVEN, "--arrivals", "7.6").stdout


def test_the_table_says_why() -> None:
    assert "Nobody may wait: even the first in the queue would wait 1.81 s" in run(*GIVEN).stdout
    told = " ".join(run(*GIVEN, "--service-mean", "1.5s", "--service-scv", "2").stdout.split())
    assert "The last of 4 in the queue waits" in told
    assert "for other scv an approximation" in told


async def status(*, measured_s: float | None) -> bytes:
    """What a real gateway's /status has, with two pools."""
    pools = {name: PoolConfig(model=name, slots=16) for name in ("small", "large")}
    gateway = Gateway(Config(pools=pools, admission=AdmissionConfig(high_water=64, low_water=32)))
    if measured_s is not None:
        service_s = gateway.policy.limiters["small"].service_s
        service_s.were_held(1, now=measured_s)
        service_s.ended(measured_s)
    return json.dumps({"ready": True, **gateway.status()}).encode()


async def test_a_running_gateway_is_read_and_its_marks_are_judged() -> None:
    with admin_port("/status", await status(measured_s=6.3)) as url:
        result = planned("--from", url, "--pool", "small", *ASKED, "--arrivals", "7.6")
        other = planned("--from", url, "--pool", "small", *ASKED, "--slots", "8")
    assert (result["plan"]["slots"], result["plan"]["service_mean_s"]) == (16, 6.3)
    present = result["marks"]["present"]
    assert (present["high_water"], present["low_water"]) == (64, 32)
    assert present["in_time"] < 0.001 < 0.3 < result["marks"]["recommended"]["in_time"]
    assert other["plan"]["slots"] == 8, "what is given wins"


async def test_a_gateway_that_cannot_be_read_is_one_sentence() -> None:
    with admin_port("/status", await status(measured_s=None)) as url:
        for args, why in (
            (("--pool", "small"), "no request of this pool has ended yet; give --service-mean"),
            ((), "name one with --pool; it has small, large"),
            (("--pool", "big"), "there is no pool big; it has small, large"),
        ):
            done = run("--from", url, *args, *ASKED)
            assert (done.exit_code, done.stdout) == (1, "")
            assert why in done.stderr
    done = run("--from", url, "--pool", "small", *ASKED)  # it is gone now
    assert done.exit_code == 1
    assert "Is it running, and is this its admin port" in done.stderr
    for body in (b"[]", b"{}", b'{"pools": 3}', b'{"pools": {"small": {}}}', b"hello"):
        with admin_port("/status", body) as url:
            done = run("--from", url, "--pool", "small", *ASKED)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), body


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((*GIVEN, "--service-scv", "-1"), "scv must be at least 0"),
        (ASKED, "give --slots and --service-mean, or --from URL"),
        ((*GIVEN, "--prefill", "1s"), "prefill (1 s) takes all of the TTFT (1 s)"),
        ((*GIVEN, "--slots", "0"), "slots must be between 1 and 100,000"),
        ((*GIVEN, "--percentile", "99"), "percentile must be at least 0.5 and below 1"),
        ((*GIVEN, "--arrivals", "inf"), "arrivals_per_s must be at least 0 and finite"),
        ((*GIVEN, "--pool", "small"), "say which with --from URL"),
        ((*GIVEN, "--from", "127.0.0.1:9902"), "write http://host:port"),
        ((*GIVEN, "--plot", "plan.txt"), "name ends in .svg, .png, .pdf"),
        ((*GIVEN, "--plot", "/no/such/plan.svg"), "there is no folder /no/such"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_status_1(args: tuple[str, ...], why: str) -> None:
    done = run(*args)
    assert (done.exit_code, done.stdout) == (1, "")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_duration_without_a_unit_is_refused() -> None:
    done = run(*GIVEN, "--ttft", "1")
    assert done.exit_code == 2
    assert "write a duration with its unit" in done.stderr


async def test_the_picture_shows_knee_limit_and_both_marks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plan.svg"
    with admin_port("/status", await status(measured_s=1.5)) as url:
        result = planned("--from", url, "--pool", "small", *ASKED, "--plot", str(plot))
    assert plot.read_text().startswith("<?xml")
    from extproc.plan.views import figure

    waits, goodput = figure(result).axes
    labels = [str(line.get_label()) for line in (*waits.lines, *goodput.lines)]
    for begins in ("limit", "knee", "recommended high_water 4:", "present high_water 64:"):
        assert any(label.startswith(begins) for label in labels), begins
    assert {"recommended: 4/2", "present: 64/32"} <= set(labels)
