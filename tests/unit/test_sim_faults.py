"""Each fault that can be switched on, as the client sees its bytes."""

import asyncio
import time
from typing import Any

import pytest

from serving.faults import FaultError, Faults
from serving.sim import SimSettings, serve
from tests.unit.test_sim_kit import (
    ABORT,
    CHAT,
    TEXT,
    chat,
    content,
    parse_sse,
    receive_all,
    receive_until,
    simulator,
    text,
)

STREAM = chat(stream=True, max_tokens=10)


# The switch itself.


async def test_a_post_replaces_the_faults_and_a_get_shows_them() -> None:
    async with simulator() as sim:
        assert await sim.json("GET", "/sim/faults") == (200, {})
        await sim.faults(latency_ms=1, status={"value": 503, "count": 2, "retry_after": 4})
        assert (await sim.json("GET", "/sim/faults"))[1] == {
            "latency_ms": {"value": 1, "probability": 1.0},
            "status": {"value": 503, "probability": 1.0, "count": 2, "retry_after": 4},
        }
        await sim.faults(stall_after={"value": 0, "probability": 0.5})
        shown = {"stall_after": {"value": 0, "probability": 0.5}}
        assert (await sim.json("GET", "/sim/faults"))[1] == shown
        await sim.faults()
        assert (await sim.json("GET", "/sim/faults"))[1] == {}


@pytest.mark.parametrize(
    ("described", "named"),
    [
        ([], "object"),
        ({"explode": 1}, "explode"),
        ({"status": {"value": 500, "when": 1}}, "status.when"),
        ({"latency_ms": {"value": 1, "retry_after": 1}}, "latency_ms.retry_after"),
        ({"latency_ms": -1}, "latency_ms"),
        ({"latency_ms": "5"}, "latency_ms"),
        ({"status": 200}, "status"),
        ({"status": 999}, "status"),
        ({"status": True}, "status"),
        ({"reset_before": 1}, "reset_before"),
        ({"reset_before": False}, "reset_before"),
        ({"reset_after": -1}, "reset_after"),
        ({"stall_after": 1.5}, "stall_after"),
        ({"error_event_after": None}, "error_event_after"),
        ({"status": {"value": 500, "probability": 2}}, "status.probability"),
        ({"status": {"value": 500, "count": 0}}, "status.count"),
    ],
)
async def test_a_wrong_description_is_400_names_the_member_and_changes_nothing(
    described: Any, named: str
) -> None:
    async with simulator(faults={"latency_ms": 1}) as sim:
        status, body = await sim.json("POST", "/sim/faults", json=described)
        assert status == 400
        assert named in body["error"]["message"]
        assert "latency_ms" in (await sim.json("GET", "/sim/faults"))[1]


async def test_wrong_initial_faults_are_refused_before_ready() -> None:
    with pytest.raises(FaultError, match="explode"):
        await serve(SimSettings(port=0, faults={"explode": 1}), ready=pytest.fail)


async def test_initial_faults_are_on_from_the_start() -> None:
    async with simulator(faults={"status": 500}) as sim:
        assert (await sim.json("POST", CHAT, json=chat()))[0] == 500


async def test_a_count_limits_a_fault_to_the_next_requests() -> None:
    async with simulator() as sim:
        await sim.faults(status={"value": 503, "count": 2})
        statuses = [(await sim.json("POST", CHAT, json=chat()))[0] for _ in range(4)]
        assert statuses == [503, 503, 200, 200]
        assert (await sim.json("GET", "/sim/faults"))[1] == {}


def test_a_probability_strikes_that_share_of_requests_and_repeats_with_its_seed() -> None:
    def strikes(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.replace({"reset_before": {"value": True, "probability": 0.3}})
        return [faults.strike().reset_before for _ in range(1000)]

    assert 250 < sum(strikes(1)) < 350
    assert strikes(1) == strikes(1)
    assert strikes(1) != strikes(2)


def test_a_count_is_used_up_by_requests_that_are_not_struck() -> None:
    faults = Faults(0)
    faults.replace({"reset_before": {"value": True, "probability": 0, "count": 2}})
    assert not faults.strike().reset_before
    assert faults.describe()["reset_before"]["count"] == 1
    assert not faults.strike().reset_before
    assert faults.describe() == {}


async def test_only_post_v1_is_struck() -> None:
    async with simulator() as sim:
        await sim.faults(status=500)
        for path in ("/health", "/v1/models", "/metrics", "/sim/requests"):
            async with sim.http.get(path) as response:
                assert response.status == 200
        async with sim.http.post(ABORT, json={"request_ids": []}) as response:
            assert response.status == 200
        assert (await sim.json("POST", "/v1/embeddings", json={}))[0] == 500


# The kinds.


async def test_latency_delays_even_the_headers() -> None:
    async with simulator() as sim:
        await sim.faults(latency_ms=120)
        started = time.monotonic()
        async with sim.http.post(CHAT, json=STREAM) as response:
            assert 0.12 <= time.monotonic() - started < 0.4
            assert parse_sse(await response.read())[-1] == "[DONE]"
        assert (await sim.requests())[0]["ended"] == "length"


async def test_a_client_that_leaves_during_the_latency_is_seen() -> None:
    async with simulator() as sim:
        await sim.faults(latency_ms=5000)
        connection = await sim.send(CHAT, STREAM)
        await asyncio.sleep(0.03)
        connection.close()
        await sim.until_ended("disconnected")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, "InternalServerError"),
        (503, "ServiceUnavailableError"),
        (429, "TooManyRequestsError"),
    ],
)
async def test_a_status_comes_with_an_error_in_openais_shape(status: int, kind: str) -> None:
    async with simulator() as sim:
        await sim.faults(status={"value": status, "retry_after": 7})
        async with sim.http.post(CHAT, json=STREAM) as response:
            assert response.status == status
            assert response.headers["retry-after"] == "7"
            error = (await response.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == (kind, status)
        await sim.faults(status=status)
        async with sim.http.post(CHAT, json=STREAM) as response:
            assert "retry-after" not in response.headers
        assert [one["ended"] for one in await sim.requests()] == ["fault", "fault"]


@pytest.mark.parametrize("stream", [True, False])
async def test_reset_before_resets_the_connection_before_any_byte(stream: bool) -> None:
    async with simulator() as sim:
        await sim.faults(reset_before=True)
        with await sim.send(CHAT, chat(stream=stream)) as connection:
            assert await receive_all(connection) == (b"", True)
        (one,) = await sim.requests()
    assert (one["ended"], one["tokens"]) == ("fault", 0)


@pytest.mark.parametrize("tokens", [0, 3])
async def test_reset_after_resets_a_stream_after_so_many_tokens(tokens: int) -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        await sim.faults(reset_after=tokens)
        with await sim.send(CHAT, STREAM) as connection:
            received, reset = await receive_all(connection)
        await sim.until_gauges(0, 0)
        (one,) = await sim.requests()
    assert reset
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b'"delta":{"content":"') == tokens
    assert b"0\r\n\r\n" not in received.replace(b"\r\n\r\n", b"", 1)
    assert (one["ended"], one["tokens"]) == ("fault", tokens)


async def test_reset_after_resets_a_whole_answer_before_any_byte() -> None:
    async with simulator() as sim:
        await sim.faults(reset_after=3)
        with await sim.send(CHAT, chat()) as connection:
            assert await receive_all(connection) == (b"", True)


@pytest.mark.parametrize("tokens", [0, 3])
async def test_stall_after_falls_silent_holds_its_slot_and_is_deaf_to_aborts(tokens: int) -> None:
    async with simulator(max_num_seqs=1, decode_ms_per_token=2) as sim:
        await sim.faults(stall_after={"value": tokens, "count": 1})
        headers = {"x-request-id": "R"}
        response = await sim.http.post(CHAT, json=STREAM, headers=headers)
        assert response.status == 200
        seen = b""
        while seen.count(b'"delta":{"content":"') < tokens:
            seen += await response.content.readany()
        async with sim.http.post(ABORT, json={"request_ids": ["chatcmpl-R"]}) as aborted:
            assert aborted.status == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.1)
        assert seen.count(b'"delta":{"content":"') == tokens
        assert await sim.gauges() == (1, 0)
        (one,) = await sim.requests()
        assert (one["ended"], one["tokens"]) == ("fault", tokens)
        next_one = asyncio.create_task(sim.events(CHAT, STREAM))
        await sim.until_gauges(1, 1)
        response.close()
        assert (await next_one)[-1] == "[DONE]", "the slot is free when the client gives up"


async def test_a_stalled_stream_sends_no_keep_alive_either() -> None:
    async with simulator(keep_alive_interval_s=0.02) as sim:
        await sim.faults(stall_after=0)
        with await sim.send(CHAT, STREAM) as connection:
            head = await receive_until(connection, lambda got: b"\r\n\r\n" in got)
            assert head.endswith(b"\r\n\r\n")
            with pytest.raises(TimeoutError):
                await receive_until(connection, bool, within_s=0.1)


async def test_stall_after_never_answers_a_whole_request() -> None:
    async with simulator() as sim:
        await sim.faults(stall_after=2)
        with await sim.send(CHAT, chat()) as connection:
            with pytest.raises(TimeoutError):
                await receive_until(connection, bool, within_s=0.1)
            assert await sim.gauges() == (1, 0)
        await sim.until_gauges(0, 0)


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat), (TEXT, text)])
async def test_error_event_after_ends_a_200_stream_with_an_error_and_done(
    path: str, body: Any, tokens: int
) -> None:
    async with simulator() as sim:
        await sim.faults(error_event_after=tokens)
        *chunks, error, done = await sim.events(path, body(stream=True))
        await sim.until_gauges(0, 0)
        (one,) = await sim.requests()
    assert done == "[DONE]"
    assert set(error) == {"error"}
    assert (error["error"]["code"], error["error"]["type"]) == (500, "InternalServerError")
    assert len(content(chunks).split()) == tokens
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert (one["ended"], one["tokens"]) == ("fault", tokens)


async def test_error_event_after_is_a_500_for_a_whole_answer() -> None:
    async with simulator() as sim:
        await sim.faults(error_event_after=3)
        status, body = await sim.json("POST", CHAT, json=chat())
    assert status == 500
    assert body["error"]["code"] == 500


async def test_an_answer_shorter_than_the_faults_tokens_ends_normally() -> None:
    async with simulator() as sim:
        await sim.faults(stall_after=10)
        events = await sim.events(CHAT, STREAM)
    assert events[-1] == "[DONE]"
    assert len(content(events).split()) == 10


async def test_ignore_aborts_answers_200_and_lets_the_request_go_on() -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        await sim.faults(ignore_aborts={"value": True, "count": 1})
        stream = asyncio.create_task(sim.events(CHAT, chat(stream=True, max_tokens=5000), "R"))
        await sim.until_gauges(1, 0)
        abort = {"request_ids": ["chatcmpl-R"]}
        async with sim.http.post(ABORT, json=abort) as response:
            assert response.status == 200
        assert await sim.gauges() == (1, 0)
        async with sim.http.post(ABORT, json=abort) as response:
            assert response.status == 200
        assert (await stream)[-2]["choices"][0]["finish_reason"] == "abort"
