"""Time, queue, disconnects and aborts of the simulated server, over real sockets."""

import asyncio
import itertools
import socket
import statistics
import time
from typing import Any

import pytest

from tests.unit.test_sim_kit import (
    ABORT,
    CHAT,
    TEXT,
    chat,
    content,
    parse_sse,
    receive_until,
    simulator,
    text,
)

LONG = {"max_tokens": 5000}


# Time, queue, disconnects.


async def test_prefill_and_decode_take_the_time_that_the_settings_say() -> None:
    async with simulator(prefill_ms_per_1k_tokens=200, decode_ms_per_token=20) as sim:
        arrivals = []
        prompt = [1] * 500
        started = time.monotonic()
        async with sim.http.post(TEXT, json=text(prompt=prompt, stream=True)) as response:
            assert time.monotonic() - started < 0.08, "headers do not wait for the first token"
            async for line in response.content:
                if line.startswith(b"data: {"):
                    arrivals.append(time.monotonic())
    assert 0.1 <= arrivals[0] - started < 0.18
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.15)


async def test_a_queued_stream_has_its_headers_at_once_and_tokens_when_a_place_is_free() -> None:
    async with simulator(max_num_seqs=1, decode_ms_per_token=10) as sim:
        first = await sim.http.post(CHAT, json=chat(stream=True, max_tokens=30))
        second = await sim.http.post(CHAT, json=chat(stream=True, max_tokens=1))
        assert second.status == 200
        await sim.until_gauges(1, 1, within_s=0.1)
        waiting = asyncio.create_task(second.read())
        assert parse_sse(await first.read())[-1] == "[DONE]"
        assert not waiting.done(), "nothing came while it was queued"
        assert parse_sse(await waiting)[-1] == "[DONE]"


async def test_no_more_than_max_num_seqs_run_and_they_start_in_order() -> None:
    async with simulator(max_num_seqs=2, decode_ms_per_token=2) as sim:
        finished: list[int] = []
        most = 0.0

        async def ask(number: int) -> None:
            await sim.json("POST", CHAT, json=chat(max_tokens=10))
            finished.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(ask(number))
                await asyncio.sleep(0.001)
            while len(finished) < 8:
                most = max(most, (await sim.gauges())[0])
                await asyncio.sleep(0.003)
    assert most == 2
    assert [number // 2 for number in finished] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_work_running_or_queued(stream: bool) -> None:
    async with simulator(max_num_seqs=1, decode_ms_per_token=5) as sim:
        running = await sim.send(CHAT, chat(stream=stream, **LONG))
        await sim.until_gauges(1, 0)
        queued = await sim.send(CHAT, chat(stream=stream, **LONG))
        await sim.until_gauges(1, 1)
        queued.close()
        await sim.until_gauges(1, 0)
        running.close()
        await sim.until_gauges(0, 0)
        tokens = (await sim.metrics())["generation_tokens_total"]
        await asyncio.sleep(0.05)
        assert (await sim.metrics())["generation_tokens_total"] == tokens, "no work goes on"
        requests = await sim.requests()
    assert [request["ended"] for request in requests] == ["disconnected", "disconnected"]
    assert requests[0]["tokens"] == tokens
    assert requests[1]["tokens"] == 0


async def test_a_reset_by_the_client_ends_its_work_too() -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        connection = await sim.send(CHAT, chat(stream=True, **LONG))
        await receive_until(connection, lambda got: b"simulated" in got)
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()
        await sim.until_gauges(0, 0)


async def test_keep_alive_comments_come_while_queued_and_end_with_the_first_token() -> None:
    async with simulator(max_num_seqs=1, decode_ms_per_token=5, keep_alive_interval_s=0.03) as sim:
        first = await sim.http.post(CHAT, json=chat(stream=True, max_tokens=30))
        async with sim.http.post(CHAT, json=chat(stream=True, max_tokens=20)) as second:
            body = await second.read()
        first.close()
    comments, tokens = body.split(b"data: ", 1)
    assert comments.count(b": keep-alive\n\n") >= 2
    assert comments.replace(b": keep-alive\n\n", b"") == b""
    assert b": keep-alive" not in tokens


async def test_no_keep_alive_comments_unless_asked() -> None:
    async with simulator(prefill_ms_per_1k_tokens=10_000) as sim:
        response = await sim.http.post(CHAT, json=chat(stream=True))
        assert b": keep-alive" not in await response.read()


async def test_300_streams_at_once_all_end_in_order() -> None:
    async with simulator(max_num_seqs=200, decode_ms_per_token=10) as sim:
        bodies = [chat(stream=True, max_tokens=20) for _ in range(300)]
        streams = await asyncio.gather(*(sim.events(CHAT, body) for body in bodies))
        assert await sim.gauges() == (0, 0)
    assert {len(events) for events in streams} == {22}
    assert len({content(events) for events in streams}) == 1


# Abort.


async def _streaming(sim: Any, path: str, body: dict[str, Any], rid: str) -> Any:
    """A stream that has brought at least three tokens."""
    response = await sim.http.post(path, json=body, headers={"x-request-id": rid})
    seen = b""
    while b" a" not in seen:
        seen += await response.content.readany()
    return response, seen


async def _abort(sim: Any, *ids: str) -> float:
    """Post the abort; the moment of its start."""
    started = time.monotonic()
    async with sim.http.post(ABORT, json={"request_ids": ids}) as response:
        assert response.status == 200
    return started


@pytest.mark.parametrize(
    ("path", "body", "engine_id"), [(CHAT, chat, "chatcmpl-R"), (TEXT, text, "cmpl-R-0")]
)
async def test_an_aborted_stream_ends_well_formed_with_exact_usage(
    path: str, body: Any, engine_id: str
) -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        asked = body(stream=True, stream_options={"include_usage": True}, **LONG)
        response, seen = await _streaming(sim, path, asked, "R")
        started = await _abort(sim, engine_id)
        *chunks, last, usage, done = parse_sse(seen + await response.read())
        assert time.monotonic() - started < 1  # of 25 s
        assert await sim.gauges() == (0, 0)
        (received,) = await sim.requests()
        samples = await sim.metrics()
        assert samples['request_success_total{finished_reason="abort"}'] == 1
    assert last["choices"][0]["finish_reason"] == "abort"
    assert last["choices"][0].get("delta", last["choices"][0]).get("content", "") == ""
    assert content([last]) == ""
    words = len(content(chunks).split())
    assert usage["usage"]["completion_tokens"] == words
    assert done == "[DONE]"
    assert (received["ended"], received["tokens"]) == ("abort", words)


@pytest.mark.parametrize(
    ("path", "body", "engine_id"), [(CHAT, chat, "chatcmpl-R"), (TEXT, text, "cmpl-R-0")]
)
async def test_an_aborted_whole_answer_is_the_partial_json(
    path: str, body: Any, engine_id: str
) -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        headers = {"x-request-id": "R"}
        asking = asyncio.create_task(sim.json("POST", path, json=body(**LONG), headers=headers))
        await asyncio.sleep(0.06)
        started = await _abort(sim, engine_id)
        status, answer = await asking
        assert time.monotonic() - started < 1  # of 25 s
    assert status == 200
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "abort"
    words = choice["message"]["content"] if "message" in choice else choice["text"]
    assert len(words.split()) == answer["usage"]["completion_tokens"] > 0


async def test_an_abort_while_queued_ends_the_stream_with_no_token_and_no_reason() -> None:
    """As vLLM 0.32 does: tests/vllm/test_numbers.py."""
    async with simulator(max_num_seqs=1, decode_ms_per_token=5) as sim:
        running, _ = await _streaming(sim, CHAT, chat(stream=True, **LONG), "first")
        body = chat(stream=True, stream_options={"include_usage": True})
        queued = asyncio.create_task(sim.events(CHAT, body, "second"))
        await sim.until_gauges(1, 1)
        await _abort(sim, "chatcmpl-second")
        role, usage, done = await queued
        assert await sim.gauges() == (1, 0)
        running.close()
    (choice,) = role["choices"]
    assert (choice["delta"]["role"], choice["finish_reason"]) == ("assistant", None)
    assert usage["usage"]["completion_tokens"] == 0
    assert done == "[DONE]"


async def test_an_abort_ends_every_choice() -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        response, seen = await _streaming(sim, CHAT, chat(stream=True, n=2, **LONG), "R")
        await _abort(sim, "chatcmpl-R")
        *chunks, done = parse_sse(seen + await response.read())
    assert done == "[DONE]"
    ends = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
    assert [(end["index"], end["finish_reason"]) for end in ends] == [(0, "abort"), (1, "abort")]


async def test_a_completions_abort_names_one_prompt() -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        body = text(prompt=["one", "two"], **LONG)
        headers = {"x-request-id": "R"}
        asking = asyncio.create_task(sim.json("POST", TEXT, json=body, headers=headers))
        await sim.until_gauges(2, 0)
        await _abort(sim, "cmpl-R")
        assert await sim.gauges() == (2, 0), "the id without an index does nothing"
        await _abort(sim, "cmpl-R-1")
        assert await sim.gauges() == (1, 0)
        await _abort(sim, "cmpl-R-0", "cmpl-unknown-0")
        _, answer = await asking
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort", "abort"]


async def test_an_abort_of_an_unknown_id_changes_nothing() -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        response, seen = await _streaming(sim, CHAT, chat(stream=True, max_tokens=20), "R")
        await _abort(sim, "chatcmpl-other", "R", "cmpl-R-0")
        events = parse_sse(seen + await response.read())
    assert events[-2]["choices"][0]["finish_reason"] == "length"


async def test_two_requests_with_one_id_both_run_and_are_both_aborted() -> None:
    async with simulator(decode_ms_per_token=5) as sim:
        body = chat(stream=True, **LONG)
        streams = [asyncio.create_task(sim.events(CHAT, body, "R")) for _ in range(2)]
        await sim.until_gauges(2, 0)
        await _abort(sim, "chatcmpl-R")
        for events in await asyncio.gather(*streams):
            assert events[-2]["choices"][0]["finish_reason"] == "abort"


async def test_abort_is_403_when_disabled_and_400_when_not_understood() -> None:
    async with simulator(abort_enabled=False) as sim:
        assert (await sim.json("POST", ABORT, json={"request_ids": ["x"]}))[0] == 403
    async with simulator() as sim:
        for body in (b"{", b"[]", b"{}", b'{"request_ids": "x"}', b'{"request_ids": [1]}'):
            assert (await sim.json("POST", ABORT, data=body))[0] == 400
