"""The simulated server as a client of vLLM meets it: routes, answers, errors."""

import json
from typing import Any

import openai
import pytest

from tests.unit.test_sim_kit import (
    ABORT,
    CHAT,
    TEXT,
    chat,
    parse_sse,
    receive_until,
    simulator,
    text,
)

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


@pytest.mark.parametrize(("method", "path"), [("GET", "/x"), ("POST", "/v1/rerank")])
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
        "prompt_tokens_details": {"cached_tokens": 0},
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
    body, headers = chat(stream=True, max_tokens=3), {"x-request-id": "abc"}
    async with simulator() as sim, sim.http.post(CHAT, json=body, headers=headers) as response:
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
        "prompt_tokens_details": {"cached_tokens": 0},
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
