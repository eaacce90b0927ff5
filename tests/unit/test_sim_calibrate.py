"""The calibration: the fit by itself, and all of it against a simulated server of known speed."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from extproc.cli import app
from serving.calibrate import CalibrationError, Point, Server, calibrate, fit, measure
from serving.calibrate.load import Answer, step_s
from serving.engine import StepTime
from serving.faults import KINDS
from serving.profile import ProfileFileError, load, save
from tests.unit.test_sim_kit import simulator

MODEL = StepTime(base_s=0.010, per_decode_seq_s=0.002, per_prefill_token_s=0.0001)


def points(model: StepTime) -> list[Point]:
    steps = [(1, 0), (2, 0), (4, 0), (8, 0), (0, 64), (0, 512)]
    return [Point(n, prefill, model.seconds(n, prefill)) for n, prefill in steps]


# The fit.


def test_a_fit_finds_the_model_that_the_points_come_from() -> None:
    fitted = fit(points(MODEL))
    for name in StepTime.names():
        assert getattr(fitted.step_time, name) == pytest.approx(getattr(MODEL, name), rel=1e-6)
    assert all(abs(fitted.error(point)) < 1e-6 for point in fitted.points)


def test_a_fit_says_how_far_it_is_from_each_point() -> None:
    skewed = [*points(MODEL), Point(16, 0, 0.084)]
    fitted = fit(skewed)
    error = fitted.error(skewed[-1])
    assert error == pytest.approx(fitted.fitted_s(skewed[-1]) / 0.084 - 1)
    assert -0.5 < error < -0.1


def test_a_fit_never_has_negative_times() -> None:
    """A batch that is quicker than a single sequence (seen on CPUs) must not give 0 s at 100."""
    measured = [(1, 0, 0.016), (2, 0, 0.018), (4, 0, 0.0137), (8, 0, 0.014), (0, 512, 0.176)]
    model = fit([Point(*one) for one in measured]).step_time
    assert model.per_decode_seq_s == 0
    assert 0.0137 < model.base_s < 0.018
    assert model.per_prefill_token_s == pytest.approx((0.176 - model.base_s) / 512, rel=0.1)


def test_steps_are_measured_only_while_all_streams_decode() -> None:
    early = Answer(0.0, [0.1, 0.9, 1.0, 1.1, 1.2], 5, 5)
    late = Answer(0.0, [0.9, 1.0, 1.1, 1.2, 2.0], 5, 5)
    assert step_s([early, late]) == pytest.approx(0.1)
    assert step_s([Answer(0.0, [0.1, 0.2], 5, 2), Answer(0.0, [0.3, 0.4], 5, 2)]) is None


def test_what_a_request_takes_besides_its_steps_is_no_part_of_the_step() -> None:
    measured = [
        Point(one.decoding, one.prefill_tokens, one.measured_s + 0.002 * (one.decoding == 0))
        for one in points(MODEL)
    ]
    fitted = fit(measured)
    for name in StepTime.names():
        assert getattr(fitted.step_time, name) == pytest.approx(getattr(MODEL, name), rel=1e-6)
    assert fitted.request_s == pytest.approx(0.002)
    assert all(abs(fitted.error(point)) < 1e-6 for point in measured)


# Against a server.


async def test_a_fast_server_is_fitted_without_what_http_takes() -> None:
    real = {"decode_ms_per_token": 4.0, "decode_ms_per_seq": 0.2, "prefill_ms_per_1k_tokens": 10.0}
    wanted = (1e-5, 0.004, 0.0054)
    seen: list[tuple[float, ...]] = []
    # A machine that stumbles costs milliseconds, as much as is measured here. A fit that is wrong
    # is wrong each time (without a constant for each request: by a fifth and more).
    for _ in range(5):
        async with simulator(**real) as sim, Server(f"http://127.0.0.1:{sim.port}") as server:
            fitted = await calibrate(server, tokens=24)
        model = fitted.step_time
        seen.append((model.per_prefill_token_s, model.seconds(1, 0), model.seconds(8, 0)))
        if seen[-1] == pytest.approx(wanted, rel=0.15) and 0 < fitted.request_s < 0.01:
            return
    pytest.fail(f"per prompt token, step of 1, step of 8: {seen} instead of {wanted}")


async def test_a_batch_that_the_server_never_runs_is_left_out_and_told() -> None:
    said: list[str] = []
    real = {"decode_ms_per_token": 6.0, "decode_ms_per_seq": 1.0, "max_num_seqs": 4}
    async with simulator(**real) as sim, Server(f"http://127.0.0.1:{sim.port}") as server:
        fitted = await calibrate(server, tokens=8, say=said.append)
    assert [one.decoding for one in fitted.points if one.decoding] == [1, 2, 4]
    assert fitted.step_time.seconds(4, 0) == pytest.approx(0.009, rel=0.25)
    assert "8 streams never decoded together and are left out" in said[-1]
    assert "5 rounds take" in said[0]


async def test_a_calibrated_simulator_is_as_fast_as_the_one_it_was_calibrated_on() -> None:
    real = {"decode_ms_per_token": 12.0, "decode_ms_per_seq": 3.0, "prefill_ms_per_1k_tokens": 90.0}
    async with simulator(**real) as sim, Server(f"http://127.0.0.1:{sim.port}") as server:
        fitted = await calibrate(server, tokens=8)
        expected = await measure(server.base, 4, tokens=16, rounds=2)
    assert len(fitted.points) == 8
    assert fitted.step_time.seconds(1, 0) == pytest.approx(0.012, rel=0.25)
    assert fitted.step_time.seconds(8, 0) == pytest.approx(0.033, rel=0.25)
    assert fitted.step_time.per_prefill_token_s == pytest.approx(9e-5, rel=0.25)
    async with simulator(step_time=fitted.step_time) as sim:
        tpot_s, tokens_per_s = await measure(
            f"http://127.0.0.1:{sim.port}/v1", 4, tokens=16, rounds=2
        )
    assert tpot_s == pytest.approx(expected[0], rel=0.25)
    assert tokens_per_s == pytest.approx(expected[1], rel=0.25)


@pytest.mark.parametrize("streams", [1, 8])
async def test_over_http_a_token_takes_what_the_profile_says(streams: int) -> None:
    model = StepTime(base_s=0.020, per_decode_seq_s=0.004)
    async with simulator(step_time=model) as sim:
        tpot_s, tokens_per_s = await measure(
            f"http://127.0.0.1:{sim.port}", streams, tokens=16, rounds=3
        )
    assert tpot_s == pytest.approx(model.seconds(streams, 0), rel=0.15)
    assert tokens_per_s == pytest.approx(streams / model.seconds(streams, 0), rel=0.25)


async def test_no_prompt_is_helped_by_the_prefix_cache() -> None:
    async with simulator() as sim, Server(f"http://127.0.0.1:{sim.port}") as server:
        for _ in range(5):
            await server.ask(words=200, tokens=1)
        samples = await sim.metrics()
    assert samples["prefix_cache_queries_total"] > 5 * 200
    assert samples["prefix_cache_hits_total"] == 0


@pytest.mark.parametrize(
    ("settings", "faults", "says"),
    [
        ({"api_key": "k"}, {}, "--api-key"),
        ({}, {"status": 429}, "429.*sheds load"),
        ({}, {"status": 500}, "500.*server's log"),
        ({}, {"error_event_after": 3}, "broke off"),
        ({}, {"reset_after": 3}, "server's log"),
        ({"decode_ms_per_token": 0}, {}, "too fast.*--decode-ms 0"),
        ({"decode_ms_per_token": 5, "max_model_len": 99}, {}, "--max-model-len 2048"),
        ({"decode_ms_per_token": 5, "max_model_len": 400}, {}, "--max-model-len 2048"),
        (
            {"decode_ms_per_token": 2, "max_num_seqs": 1},
            {},
            "2 and 4 and 8 streams never.*--max-num-seqs",
        ),
    ],
)
async def test_a_server_that_cannot_be_measured_is_an_error_that_says_what_to_do(
    settings: dict[str, Any], faults: dict[str, Any], says: str
) -> None:
    async with simulator(**settings, faults=faults) as sim:
        with pytest.raises(CalibrationError, match=says):
            async with Server(f"http://127.0.0.1:{sim.port}") as server:
                await calibrate(server, tokens=8)


async def test_a_server_that_would_take_hours_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.calibrate.run._SLOWEST_S", 0.01)
    async with simulator(decode_ms_per_token=20) as sim:
        with pytest.raises(CalibrationError, match=r"would take hours.*nobody else"):
            async with Server(f"http://127.0.0.1:{sim.port}") as server:
                await calibrate(server)
        assert len(await sim.requests()) == 1


async def test_prompts_are_no_longer_than_the_context_allows() -> None:
    async with (
        simulator(decode_ms_per_token=4, max_model_len=600) as sim,
        Server(f"http://127.0.0.1:{sim.port}") as server,
    ):
        fitted = await calibrate(server, tokens=8)
    assert len([point for point in fitted.points if point.prefill_tokens]) == 2


async def test_a_server_that_is_not_there_or_lacks_the_model_is_named() -> None:
    async with simulator() as sim:
        url = f"http://127.0.0.1:{sim.port}"
        with pytest.raises(CalibrationError, match=r"no model 'other'.*'small', 'auto'"):
            await measure(url, 1, model="other")
    with pytest.raises(CalibrationError, match="does the server run"):
        await measure(url, 1)


async def _answered_by(*events: str) -> Answer:
    """What one ask makes of a server that streams these events."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {event}\n\n".encode())
            await asyncio.sleep(0.002)
        return response

    app_ = web.Application()
    app_.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", stream)])
    async with TestServer(app_) as served, Server(str(served.make_url(""))) as server:
        return await server.ask(words=9, tokens=8)


ROLE = '{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
TOKEN = '{"choices": [{"delta": {"content": ""}}]}'
USAGE = '{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 8}}'


async def test_tokens_that_a_busy_server_joins_in_one_chunk_are_counted_all_the_same() -> None:
    answer = await _answered_by(ROLE, *[TOKEN] * 5, USAGE, "[DONE]")
    assert (len(answer.chunks_at), answer.tokens, answer.prompt_tokens) == (5, 8, 9)
    whole_s = answer.chunks_at[-1] - answer.chunks_at[0]
    assert answer.tpot_s == pytest.approx(whole_s / 7)
    assert step_s([answer]) == pytest.approx(whole_s / 7)


@pytest.mark.parametrize(
    "events",
    [
        (ROLE, TOKEN, USAGE),  # not streamed
        (ROLE, TOKEN, TOKEN),  # no usage
        (ROLE, TOKEN, TOKEN, USAGE.replace("8", "5")),  # ended early
    ],
)
async def test_a_server_that_does_not_do_as_asked_is_refused(events: tuple[str, ...]) -> None:
    with pytest.raises(CalibrationError, match="max_tokens and ignore_eos"):
        await _answered_by(*events)


# The command and its file.


async def test_the_command_prints_the_fit_and_writes_a_profile_that_sim_reads(
    tmp_path: Path,
) -> None:
    out = tmp_path / "profile.json"
    async with simulator(decode_ms_per_token=4, api_key="secret") as sim:
        url = f"http://127.0.0.1:{sim.port}"
        command = ["sim", "calibrate", url, "--api-key", "secret", "--tokens", "8"]
        command += ["--out", str(out), "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert set(shown) == {"step_time", "model", "request_ms", "points"}
    assert shown["model"] == "small"
    assert len(shown["points"]) == 8
    assert load(out) == StepTime(**shown["step_time"])
    printed = tmp_path / "printed.json"
    printed.write_text(done.stdout)
    assert load(printed) == load(out)
    assert "secret" not in out.read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "step_time: want an object of base_s"),
        ('{"step_time": {"base_s": 1}}', "want an object of base_s, per_decode_seq_s"),
        (
            json.dumps({"step_time": {**asdict(MODEL), "base_s": "1"}}),
            "base_s: '1' is not a number",
        ),
        (json.dumps({"step_time": {**asdict(MODEL), "base_s": -1}}), "base_s: must be 0 or more"),
    ],
)
def test_a_profile_that_is_wrong_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ProfileFileError, match=f"profile.json: .*{says}"):
        load(path)


def test_the_help_names_every_fault_with_what_it_does_and_every_member() -> None:
    shown = CliRunner().invoke(app, ["sim", "--help"], terminal_width=100).output
    for kind, does in KINDS.items():
        assert f"{kind:18} {does}" in shown
    for member in ("value", "probability", "count", "retry_after"):
        assert f'"{member}"' in shown


def test_a_saved_profile_is_read_again(tmp_path: Path) -> None:
    save(tmp_path / "p.json", MODEL, {"model": "m"})
    assert load(tmp_path / "p.json") == MODEL


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--port"),
        (["--port", "1", "--profile", "nowhere.json"], "nowhere.json"),
        (["--port", "1", "--profile", "p.json", "--decode-ms", "5"], "leave out --decode-ms"),
        (["--port", "1", "--num-kv-blocks", "3"], "--num-kv-blocks: must be at least 512"),
        (["--port", "1", "--num-kv-blocks", "0"], "--num-kv-blocks: must be at least 512"),
        (["--port", "1", "--decode-ms", "-1"], "forebay: --decode-ms: must be 0 or more"),
        (["--port", "1", "--prefill-ms", "nan"], "forebay: --prefill-ms: must be 0 or more"),
        (
            ["--port", "1", "--decode-ms", "1", "--decode-ms-per-seq", "2"],
            "--decode-ms-per-seq: cannot be above --decode-ms, a step",
        ),
        (["--port", "1", "--model", ""], "--model: want"),
        (["--port", "1", "--max-tokens", "0"], "--max-tokens: must"),
        (
            ["--port", "1", "--max-num-batched-tokens", "3"],
            "--max-num-batched-tokens: must be at least --max-num-seqs",
        ),
        (["calibrate", "http://127.0.0.1:1"], "does the server run"),
        (["calibrate", "127.0.0.1:1"], "write http://127.0.0.1:1"),
        (["calibrate", "http://127.0.0.1:1", "--out", "no/p.json"], "there is no folder no"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["sim", *arguments])
    assert done.exit_code == 1
    assert says in done.output


MODELS = b'{"data":[{"id":"m"}]}'
NONSENSE = {
    "no list": (b'{"data":null}', b""),
    "names": (b'{"data":["a"]}', b""),
    "an object": (b'{"data":{"a":1}}', b""),
    "broken JSON": (MODELS, b"data: {nope\n\n"),
    "usage is a text": (MODELS, b'data: {"choices":[],"usage":"x"}\n\n'),
    "choices are null": (MODELS, b'data: {"choices":null}\n\n'),
    "choices are texts": (MODELS, b'data: {"choices":["a"]}\n\n'),
    "no usage": (MODELS, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'),
    "no end": (MODELS, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 10_000),
    "a long line": (MODELS, b"data: {" + b"x" * 2_000_000),
}


@pytest.mark.parametrize("case", NONSENSE)
async def test_a_server_that_talks_nonsense_is_refused_in_a_sentence(case: str) -> None:
    models, stream = NONSENSE[case]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        body = stream if request.startswith(b"POST") else models
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(CalibrationError):
            await measure(url, 1, tokens=8, rounds=1)
