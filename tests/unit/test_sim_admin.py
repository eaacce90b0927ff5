"""What the simulated server shows of itself (metrics, log), and its life as a process."""

import asyncio
import base64
import contextlib
import json
import socket
import sys
import time
from typing import Any

import aiohttp
import pytest

from serving.sim import SimSettings, serve
from tests.unit.test_sim_kit import (
    CHAT,
    TEXT,
    Sim,
    chat,
    receive_all,
    receive_until,
    simulator,
    text,
)

LONG = {"max_tokens": 5000}


# Metrics.


async def test_metrics_count_tokens_ends_and_times_under_vllms_names() -> None:
    async with simulator(max_num_seqs=1, decode_ms_per_token=5) as sim:
        await asyncio.gather(*(sim.json("POST", CHAT, json=chat(max_tokens=4)) for _ in range(2)))
        await sim.json("POST", TEXT, json=text(n=2))
        samples = await sim.metrics()
    assert samples["prompt_tokens_total"] == 6 * 2 + 4 * 2, "each choice is a sequence, as in vLLM"
    assert samples["generation_tokens_total"] == 4 * 2 + 6 * 2
    ends = {
        r: samples[f'request_success_total{{finished_reason="{r}"}}'] for r in ("stop", "length")
    }
    assert ends == {"stop": 2, "length": 2}
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert samples[f"{name}_seconds_count"] == 4
    assert samples["inter_token_latency_seconds_count"] == 3 * 2 + 5 * 2
    assert samples["inter_token_latency_seconds_sum"] == pytest.approx(16 * 0.005, rel=0.2)
    assert 0.015 <= samples["request_queue_time_seconds_sum"] < 0.4
    assert samples['inter_token_latency_seconds_bucket{le="0.01"}'] >= 14
    assert samples["num_requests_running"] == samples["num_requests_waiting"] == 0
    assert samples["kv_cache_usage_perc"] == 0
    assert samples["request_prompt_tokens_count"] == 4
    assert samples["request_prompt_tokens_sum"] == samples["prompt_tokens_total"]
    assert samples["iteration_tokens_total_sum"] == (
        samples["prompt_tokens_total"] + samples["generation_tokens_total"]
    )
    assert samples["iteration_tokens_total_count"] == 4 * 2 + 6 * 2, "one place: a step a token"


async def test_what_is_told_of_a_request_is_told_at_its_end_and_of_tokens_at_once() -> None:
    async with simulator(max_num_seqs=1, decode_ms_per_token=5) as sim:
        connection = await sim.send(TEXT, text(prompt=[1] * 40, **LONG))
        with connection:
            await sim.until_gauges(1, 0)
            await asyncio.sleep(0.05)
            running = await sim.metrics()
        await sim.until_gauges(0, 0)
        ended = await sim.metrics()
    assert running["time_to_first_token_seconds_count"] == 1
    assert running["iteration_tokens_total_count"] > 1
    for name in ("request_queue_time_seconds", "request_prefill_time_seconds"):
        assert (running[f"{name}_count"], ended[f"{name}_count"]) == (0, 1), name
    assert running['request_prompt_tokens_bucket{le="50.0"}'] == 0
    assert ended['request_prompt_tokens_bucket{le="20.0"}'] == 0
    assert ended['request_prompt_tokens_bucket{le="50.0"}'] == 1


async def test_kv_cache_usage_is_the_share_of_blocks_in_use_and_grows_with_the_answer() -> None:
    async with simulator(max_num_seqs=1, max_model_len=1000, decode_ms_per_token=15) as sim:
        connection = await sim.send(TEXT, text(prompt=[1] * 504, max_tokens=490))
        with connection:
            await sim.until_gauges(1, 0)
            before = (await sim.metrics())["kv_cache_usage_perc"]
            await asyncio.sleep(0.25)
            after = (await sim.metrics())["kv_cache_usage_perc"]
    assert before == pytest.approx(32 / 63), "32 blocks of 16 tokens, of 63 for 1,000 tokens"
    assert before < after < 0.6


async def test_cached_tokens_are_counted_and_reported() -> None:
    async with simulator() as sim:
        body = chat(messages=[{"role": "user", "content": "x" * 4 * 60}])
        usages = [(await sim.json("POST", CHAT, json=body))[1]["usage"]]
        usages += [(await sim.json("POST", CHAT, json=body))[1]["usage"]]
        salted = {**body, "cache_salt": "acme"}
        usages += [(await sim.json("POST", CHAT, json=salted))[1]["usage"]]
        samples = await sim.metrics()
    assert [usage["prompt_tokens"] for usage in usages] == [64, 64, 64]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, 48, 0], "three blocks of 16; the fourth holds the last token"
    assert samples["prefix_cache_queries_total"] == 3 * 64
    assert samples["prefix_cache_hits_total"] == samples["prompt_tokens_cached_total"] == 48


async def test_preemptions_are_counted() -> None:
    async with simulator(max_num_seqs=2, max_model_len=64, num_kv_blocks=4) as sim:
        body = text(prompt=[1] * 8, max_tokens=50)
        other = text(prompt=[2] * 8, max_tokens=50)
        answers = await asyncio.gather(*(sim.json("POST", TEXT, json=one) for one in (body, other)))
        samples = await sim.metrics()
    assert [answer["usage"]["completion_tokens"] for _, answer in answers] == [50, 50]
    assert samples["num_preemptions_total"] == 1
    assert samples["generation_tokens_total"] == 100


# What was received.


async def test_the_log_shows_what_reached_the_model_byte_for_byte() -> None:
    async with simulator() as sim:
        body = b'{ "model":"auto", "messages":[{"role":"user","content":"\xc3\xa4"}],"x":1 }'
        before = time.time()
        async with sim.http.post(
            CHAT, data=body, headers={"X-Request-Id": "R", "X-Tenant": "acme"}
        ) as response:
            assert response.status == 200
        await sim.json("GET", "/v1/models")
        status, log = await sim.json("GET", "/sim/requests")
    assert status == 200
    assert log["total"] == 1, "only POST /v1/* counts"
    (one,) = log["requests"]
    assert set(one) == {
        *("id", "path", "headers", "body_base64", "received_at", "ended", "tokens"),
    }
    assert (one["id"], one["path"]) == ("R", CHAT)
    assert one["headers"]["x-tenant"] == "acme"
    assert base64.b64decode(one["body_base64"]) == body
    assert before <= one["received_at"] <= time.time()
    assert (one["ended"], one["tokens"]) == ("stop", 6)


async def test_the_log_shows_progress_is_cleared_by_delete_and_keeps_its_total() -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        response = await sim.http.post(CHAT, json=chat(stream=True, **LONG))
        await response.content.readuntil(b" simulated")
        (one,) = await sim.requests()
        assert one["ended"] is None
        assert one["tokens"] >= 3
        cleared = {"total": 1, "open": 1, "requests": []}
        assert await sim.json("DELETE", "/sim/requests") == (200, cleared)
        await sim.json("POST", "/v1/embeddings", json={})
        _, log = await sim.json("GET", "/sim/requests")
        response.close()
    assert log["total"] == 2
    (one,) = log["requests"]
    assert (one["path"], one["id"], one["ended"]) == ("/v1/embeddings", None, "rejected")


async def test_the_log_tells_how_many_are_still_being_answered() -> None:
    async with simulator() as sim:

        async def open_requests() -> int:
            return (await sim.json("DELETE", "/sim/requests"))[1]["open"]

        response = await sim.http.post(CHAT, json=chat(stream=True, n=3, **LONG))
        assert await open_requests() == 1, "a request, whatever its choices"
        response.close()
        for _ in range(100):
            if not await open_requests():
                break
            await asyncio.sleep(0.01)
        await sim.json("POST", CHAT, json=chat(max_tokens=1))
        await sim.json("POST", CHAT, json={})
        assert await open_requests() == 0


async def test_the_log_keeps_the_last_thousand() -> None:
    async with simulator() as sim:
        connection = await sim.connect()
        with connection:
            head = (
                b"POST /v1/x HTTP/1.1\r\nHost: sim\r\nX-Request-Id: %d\r\nContent-Length: 0\r\n\r\n"
            )
            for start in range(0, 1010, 10):
                batch = b"".join(head % number for number in range(start, start + 10))
                await asyncio.get_running_loop().sock_sendall(connection, batch)
                await receive_until(connection, lambda got: got.count(b"Not Found") >= 20)
        _, log = await sim.json("GET", "/sim/requests")
    assert log["total"] == 1010
    assert [one["id"] for one in log["requests"]] == [str(number) for number in range(10, 1010)]


async def test_header_bytes_that_are_no_utf8_do_not_break_anything() -> None:
    async with simulator() as sim:
        connection = await sim.connect()
        with connection:
            payload = json.dumps(chat()).encode()
            head = (
                b"POST %b HTTP/1.1\r\nHost: sim\r\nX-Request-Id: \xff\r\nContent-Length: %d\r\n\r\n"
            )
            request = head % (CHAT.encode(), len(payload)) + payload
            await asyncio.get_running_loop().sock_sendall(connection, request)
            answer = await receive_until(connection, lambda got: b"}}" in got or b"\r\n}" in got)
        assert answer.startswith(b"HTTP/1.1 200")
        assert len(await sim.requests()) == 1


# The process.


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_taken_port_is_an_oserror_and_ready_is_not_called() -> None:
    called: list[bool] = []
    async with simulator() as sim:
        with pytest.raises(OSError, match="address already in use"):
            await serve(SimSettings(port=sim.port), ready=lambda: called.append(True))
    assert called == []


async def test_serve_is_ready_when_it_accepts_and_ends_when_cancelled() -> None:
    port, ready = _free_port(), asyncio.Event()
    task = asyncio.create_task(serve(SimSettings(port=port), ready=ready.set))
    await asyncio.wait_for(ready.wait(), 2)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    with pytest.raises(OSError, match=r"111|refused"):
        await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": []},
        {"models": "small"},
        {"max_num_seqs": 0},
        {"max_model_len": 1},
        {"default_max_tokens": 0},
        {"decode_ms_per_token": -1},
        {"prefill_ms_per_1k_tokens": float("nan")},
        {"decode_ms_per_seq": 21},
        {"block_size": 0},
        {"num_kv_blocks": 511},
        {"max_num_batched_tokens": 15},
        {"keep_alive_interval_s": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        SimSettings(port=1, **wrong)


async def test_on_uvloop_it_serves_resets_and_stops_on_sigterm_cutting_streams() -> None:
    port = _free_port()
    code = (
        "import sys, uvloop\n"
        "from serving.sim import SimSettings, run\n"
        f"settings = SimSettings(port={port}, decode_ms_per_token=5)\n"
        "run(settings, ready=lambda: sys.stdout.write('ready\\n') and sys.stdout.flush())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 10) == b"ready\n"
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            sim = Sim(port, http)
            await sim.faults(reset_after=2)
            body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, **LONG}
            with await sim.send(CHAT, body) as connection:
                received, reset = await receive_all(connection)
            assert reset
            assert received.endswith(b"\n\n\r\n")
            await sim.faults()
            with await sim.send(CHAT, body) as connection:
                await receive_until(connection, lambda got: b"simulated" in got)
                process.terminate()
                received, _ = await receive_all(connection)
                assert b"[DONE]" not in received
        assert await asyncio.wait_for(process.wait(), 3) == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
