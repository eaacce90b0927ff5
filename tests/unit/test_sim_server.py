"""The simulated server as a client of vLLM meets it: real sockets, no faults."""

import asyncio
import base64
import contextlib
import json
import socket
import statistics
import sys
import time
from typing import Any

import openai
import pytest
from test_sim_kit import (
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

from serving.sim import SimSettings, serve

LONG = {"max_tokens": 5000}


# Small routes.


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health_and_ping_answer_200_with_nothing(path: str) -> None:
    async with simulator() as sim, sim.http.get(path) as response:
        assert (response.status, await response.read()) == (200, b"")


async def test_version_and_every_response_say_that_it_is_a_simulator() -> None:
    async with simulator() as sim:
        assert "simulator" in (await sim.json("GET", "/version"))[1]["version"]
        for method, path, body in (
            ("GET", "/health", None),
            ("GET", "/nowhere", None),
            ("POST", CHAT, chat()),
            ("POST", CHAT, chat(stream=True)),
            ("POST", CHAT, chat(model="unknown")),
        ):
            async with sim.http.request(method, path, json=body) as response:
                assert response.headers["x-forebay-simulator"] == "1"


async def test_models_lists_all_names() -> None:
    async with simulator() as sim:
        status, body = await sim.json("GET", "/v1/models")
    assert status == 200
    assert [(m["id"], m["owned_by"]) for m in body["data"]] == [
        ("small", "forebay-simulator"),
        ("auto", "forebay-simulator"),
    ]


@pytest.mark.parametrize(("method", "path"), [("GET", "/x"), ("POST", "/v1/embeddings")])
async def test_an_unknown_path_is_404_with_detail(method: str, path: str) -> None:
    async with simulator() as sim:
        assert await sim.json(method, path) == (404, {"detail": "Not Found"})


async def test_the_key_is_wanted_on_v1_and_inference_and_only_there() -> None:
    async with simulator(api_key="s3cret") as sim:
        right = {"Authorization": "Bearer s3cret"}
        for method, path, body in (
            ("GET", "/v1/models", None),
            ("POST", CHAT, chat()),
            ("POST", ABORT, {"request_ids": []}),
        ):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                status, error = await sim.json(method, path, json=body, headers=headers)
                assert (status, error) == (401, {"error": "Unauthorized"})
            async with sim.http.request(method, path, json=body, headers=right) as response:
                assert response.status == 200
        async with sim.http.get("/health") as response:
            assert response.status == 200


# Answers, whole and streamed.


async def test_a_chat_answer_has_vllms_shape_and_says_that_it_is_simulated() -> None:
    async with simulator() as sim:
        headers = {"x-request-id": "abc"}
        status, answer = await sim.json("POST", CHAT, json=chat(max_tokens=14), headers=headers)
    assert status == 200
    assert answer["id"] == "chatcmpl-abc"
    assert (answer["object"], answer["model"]) == ("chat.completion", "small")
    assert answer["usage"] == {
        "prompt_tokens": 6,  # 8 characters and one message
        "completion_tokens": 14,
        "total_tokens": 20,
        "prompt_tokens_details": None,
    }
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].startswith("This is a simulated answer")
    assert choice["message"]["content"].endswith(" word13 word14")
    assert len(choice["message"]["content"].split()) == 14


async def test_an_answer_without_max_tokens_has_the_default_length_and_stops() -> None:
    async with simulator(default_max_tokens=7) as sim:
        _, answer = await sim.json("POST", CHAT, json=chat())
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 7


async def test_a_default_length_that_does_not_fit_the_context_is_cut() -> None:
    async with simulator(default_max_tokens=50, max_model_len=10) as sim:
        _, answer = await sim.json("POST", CHAT, json=chat())
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 10


async def test_max_completion_tokens_wins_and_min_tokens_lengthens_the_default() -> None:
    async with simulator() as sim:
        body = chat(max_completion_tokens=3, max_tokens=9, ignore_eos=True)
        assert (await sim.json("POST", CHAT, json=body))[1]["usage"]["completion_tokens"] == 3
        body = chat(min_tokens=11)
        assert (await sim.json("POST", CHAT, json=body))[1]["usage"]["completion_tokens"] == 11


async def test_a_completion_answers_every_prompt_n_times() -> None:
    async with simulator() as sim:
        body = text(prompt=["one prompt", [1, 2, 3]], n=2, max_tokens=4)
        headers = {"x-request-id": "abc"}
        _, answer = await sim.json("POST", TEXT, json=body, headers=headers)
    assert (answer["id"], answer["object"]) == ("cmpl-abc", "text_completion")
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert {choice["text"] for choice in answer["choices"]} == {"This is a simulated"}
    assert answer["usage"]["prompt_tokens"] == 3 + 3
    assert answer["usage"]["completion_tokens"] == 16


async def test_the_model_is_the_first_name_whatever_was_asked_and_may_be_omitted() -> None:
    async with simulator() as sim:
        for asked in ({"model": "auto"}, {"model": None}, {}):
            body = {**chat(), **asked}
            if not asked:
                del body["model"]
            assert (await sim.json("POST", CHAT, json=body))[1]["model"] == "small"
            events = await sim.events(CHAT, {**body, "stream": True})
            assert {event["model"] for event in events[:-1]} == {"small"}


async def test_a_streamed_chat_has_role_tokens_reason_and_done_but_no_usage_unasked() -> None:
    async with simulator() as sim:
        async with sim.http.post(
            CHAT, json=chat(stream=True, max_tokens=3), headers={"x-request-id": "abc"}
        ) as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            *chunks, done = parse_sse(await response.read())
    assert done == "[DONE]"
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-abc"}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "This"},
        {"content": " is"},
        {"content": " a"},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "length"]
    assert not any("usage" in chunk for chunk in chunks)


async def test_include_usage_adds_one_chunk_without_choices_before_done() -> None:
    async with simulator() as sim:
        body = chat(stream=True, max_tokens=3, n=2, stream_options={"include_usage": True})
        *chunks, last, done = await sim.events(CHAT, body)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 6,
        "total_tokens": 12,
        "prompt_tokens_details": None,
    }
    assert not any("usage" in chunk for chunk in chunks)
    assert sum(1 for c in chunks if c["choices"][0]["finish_reason"] == "length") == 2


async def test_continuous_usage_stats_puts_running_usage_in_every_chunk() -> None:
    async with simulator() as sim:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = chat(stream=True, max_tokens=3, stream_options=options)
        *chunks, done = await sim.events(CHAT, body)
    assert done == "[DONE]"
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 3]


async def test_a_streamed_completion_has_text_and_no_role() -> None:
    async with simulator() as sim:
        *chunks, _ = await sim.events(TEXT, text(stream=True, max_tokens=4))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["This", " is", " a", " simulated"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def test_role_and_first_token_come_in_one_write_and_each_later_step_in_one() -> None:
    async with simulator(decode_ms_per_token=60) as sim:
        connection = await sim.send(CHAT, chat(stream=True, max_tokens=3, n=2))
        with connection:
            head = await receive_until(connection, lambda got: b"\r\n\r\n" in got)
            body = head.split(b"\r\n\r\n", 1)[1]
            body += await receive_until(connection, lambda got: b'"is"' in got or b" is" in got)
    first_write = body.split(b"\r\n", 2)[1]
    assert first_write.count(b"data: ") == 4
    assert first_write.count(b'"role"') == 2
    assert first_write.count(b'"This"') == 2


async def test_the_official_client_reads_answers_and_streams() -> None:
    async with simulator(api_key="key") as sim:
        base_url = f"http://127.0.0.1:{sim.port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "Hi"}]
            answer = await client.chat.completions.create(
                model="small", messages=messages, max_tokens=5
            )
            assert answer.choices[0].message.content == "This is a simulated answer:"
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 5
            stream = await client.chat.completions.create(
                model="small",
                messages=messages,
                max_tokens=5,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
            assert "".join(pieces) == "This is a simulated answer:"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 5
            completion = await client.completions.create(model="auto", prompt="Hi", max_tokens=2)
            assert completion.choices[0].text == "This is"
            assert [model.id async for model in client.models.list()] == ["small", "auto"]
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="gpt-x", messages=messages)


# Errors.


async def test_an_unknown_model_is_404_in_vllms_shape() -> None:
    async with simulator() as sim:
        status, body = await sim.json("POST", CHAT, json=chat(model="gpt-x", stream=True))
    assert status == 404
    assert body == {
        "error": {
            "message": "The model `gpt-x` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b"{"),
        (CHAT, b"[]"),
        (CHAT, b"\xff"),
        (CHAT, {"model": "small"}),
        (CHAT, chat(messages=[])),
        (CHAT, chat(messages="Hi")),
        (CHAT, chat(messages=[{"content": "no role"}])),
        (CHAT, chat(messages=[{"role": "user", "content": 7}])),
        (CHAT, chat(model=7)),
        (CHAT, chat(stream="yes")),
        (CHAT, chat(max_tokens="10")),
        (CHAT, chat(max_tokens=True)),
        (CHAT, chat(max_tokens=0)),
        (CHAT, chat(n=0)),
        (CHAT, chat(n=1000)),
        (CHAT, chat(temperature="hot")),
        (CHAT, chat(stream_options={"include_usage": True})),
        (CHAT, chat(stream=True, stream_options=[])),
        (CHAT, chat(min_tokens=5, max_tokens=4)),
        (CHAT, chat(max_tokens=8192)),
        (CHAT, chat(max_tokens=8192, stream=True)),
        (CHAT, chat(messages=[{"role": "user", "content": "x" * 40_000}])),
        (TEXT, {"model": "small"}),
        (TEXT, text(prompt="")),
        (TEXT, text(prompt=[])),
        (TEXT, text(prompt=[None])),
        (TEXT, text(prompt={"a": 1})),
    ],
)
async def test_a_bad_request_is_400_in_vllms_shape(path: str, body: Any) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with simulator() as sim:
        status, answer = await sim.json("POST", path, data=data)
        (received,) = await sim.requests()
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert (answer["error"]["type"], answer["error"]["code"]) == ("BadRequestError", 400)
    assert (received["ended"], received["tokens"]) == ("rejected", 0)


async def test_prompt_and_max_tokens_may_fill_the_context_exactly() -> None:
    async with simulator(max_model_len=16, decode_ms_per_token=0) as sim:
        assert (await sim.json("POST", CHAT, json=chat(max_tokens=10)))[0] == 200
        assert (await sim.json("POST", CHAT, json=chat(max_tokens=11)))[0] == 400


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
    gaps = [after - before for before, after in zip(arrivals, arrivals[1:], strict=False)]
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.15)


async def test_a_queued_stream_has_its_headers_at_once_and_its_tokens_when_a_place_is_free() -> (
    None
):
    async with simulator(max_num_seqs=1, decode_ms_per_token=10) as sim:
        first = await sim.http.post(CHAT, json=chat(stream=True, max_tokens=30))
        second = await sim.http.post(CHAT, json=chat(stream=True, max_tokens=1))
        assert second.status == 200
        assert await sim.gauges() == (1, 1)
        await second.content.readline()
        assert await sim.gauges() == (1, 0) or await sim.gauges() == (0, 0)
        assert parse_sse(await first.read())[-1] == "[DONE]"
        second.close()


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
        async with sim.http.post(CHAT, json=chat(stream=True)) as response:
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
        assert time.monotonic() - started < 0.04
        assert await sim.gauges() == (0, 0)
        (received,) = await sim.requests()
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
        assert time.monotonic() - started < 0.04
    assert status == 200
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "abort"
    words = choice["message"]["content"] if "message" in choice else choice["text"]
    assert len(words.split()) == answer["usage"]["completion_tokens"] > 0


async def test_an_abort_while_queued_ends_the_stream_with_no_token() -> None:
    async with simulator(max_num_seqs=1, decode_ms_per_token=5) as sim:
        running, _ = await _streaming(sim, CHAT, chat(stream=True, **LONG), "first")
        body = chat(stream=True, stream_options={"include_usage": True})
        queued = asyncio.create_task(sim.events(CHAT, body, "second"))
        await sim.until_gauges(1, 1)
        await _abort(sim, "chatcmpl-second")
        role, last, usage, done = await queued
        assert await sim.gauges() == (1, 0)
        running.close()
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0]["finish_reason"] == "abort"
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


async def test_kv_cache_usage_is_a_share_that_grows_while_something_runs() -> None:
    async with simulator(max_num_seqs=1, max_model_len=1000, decode_ms_per_token=5) as sim:
        connection = await sim.send(TEXT, text(prompt=[1] * 500, max_tokens=500))
        with connection:
            await sim.until_gauges(1, 0)
            before = (await sim.metrics())["kv_cache_usage_perc"]
            await asyncio.sleep(0.05)
            after = (await sim.metrics())["kv_cache_usage_perc"]
    assert 0.5 <= before < after < 0.6


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
        response, _ = await _streaming(sim, CHAT, chat(stream=True, **LONG), "R")
        (one,) = await sim.requests()
        assert one["ended"] is None
        assert one["tokens"] >= 3
        assert await sim.json("DELETE", "/sim/requests") == (200, {"total": 1, "requests": []})
        await sim.json("POST", "/v1/embeddings", json={})
        _, log = await sim.json("GET", "/sim/requests")
        response.close()
    assert log["total"] == 2
    (one,) = log["requests"]
    assert (one["path"], one["id"], one["ended"]) == ("/v1/embeddings", None, "rejected")


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
    with pytest.raises(OSError, match="refused"):
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
        import aiohttp
        from test_sim_kit import Sim, receive_all

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
