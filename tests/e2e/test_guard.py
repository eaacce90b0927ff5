"""`partial_by: guard`: the processor itself ends a streamed answer at its deadline."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway

GUARDED = {"small": {"partial_by": "guard"}, "large": {"server": "other"}}


@pytest.fixture(scope="module")
def guarded(make_gateway: MakeGateway) -> Gateway:
    policy = {
        "pools": GUARDED,
        "routing": {"fallback": {"large": ["large"]}},  # not to one that could be asked
        "response": {"deadline": "700ms", "grace": "1s"},
    }
    return make_gateway(policy=policy)


@pytest.fixture
def gateway(guarded: Gateway) -> Gateway:
    guarded.reset()
    return guarded


def chunks(body: bytes) -> list[dict]:
    events = [e.removeprefix("data: ") for e in body.decode().split("\n\n") if e]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_an_answer_that_ends_in_time_passes_unchanged(gateway: Gateway) -> None:
    answer = await gateway.ask(chat(stream=True, max_tokens=20))
    assert answer.status == 200
    got = chunks(answer.body)
    assert got[-1]["choices"][0]["finish_reason"] == "length"
    assert not any("forebay" in chunk for chunk in got)
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in got]
    assert len("".join(texts).split()) == 20


@pytest.mark.parametrize("model", ["small-7b", "large-70b"])
async def test_at_the_deadline_it_gets_an_end_that_says_so(gateway: Gateway, model: str) -> None:
    pool = model.partition("-")[0]
    began = time.monotonic()
    answer = await gateway.ask(
        chat(model=model, stream=True, max_tokens=5000, stream_options={"include_usage": True})
    )
    took = time.monotonic() - began
    assert answer.status == 200
    assert 0.6 < took < 1.4
    *texts, last, usage = chunks(answer.body)
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["forebay"] == {"incomplete": True, "reason": "deadline"}
    assert last["id"] == texts[0]["id"]
    # One of the chunks only gives the role.
    assert usage["usage"]["completion_tokens"] == len(texts) - 1
    await gateway.until_async(lambda: gateway.running(pool) == 0, "the server still works")
    [received] = gateway.received(pool)
    assert received["ended"] == "disconnected"  # nobody was asked to stop anything
    assert gateway.metric(f'forebay_closed_answers_total{{pool="{pool}",reason="deadline"') >= 1


async def test_a_server_that_has_stalled_is_ended_too(gateway: Gateway) -> None:
    gateway.set_faults("small", {"stall_after": 5})
    answer = await gateway.ask(chat(model="small-7b", stream=True, max_tokens=50))
    *texts, last = chunks(answer.body)
    assert last["forebay"]["reason"] == "deadline"
    assert len(texts) == 6


@asynccontextmanager
async def answered_by(
    make_gateway: MakeGateway, event: bytes, length: int
) -> AsyncIterator[Gateway]:
    """A guarded gateway whose servers begin every stream with this event, and then say no more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        kind = b"text/event-stream" if b"POST" in request else b"application/json"
        models = b'{"data":[{"id":"small-7b"}]}'
        body, size = (event, length) if b"POST" in request else (models, len(models))
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n"
        )
        writer.write(head % (kind, size) + body)
        await writer.drain()
        if b"POST" in request:
            await reader.read()  # the gateway leaves
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        gateway = await asyncio.to_thread(
            make_gateway,
            policy={
                "pools": {"small": {"server": "other"}, "large": {"server": "other"}},
                "response": {"deadline": "700ms", "grace": "1s"},
            },
            backends={"small": (url,), "large": (url,)},
        )
        yield gateway


async def test_a_stream_that_says_its_length_can_be_ended_before(
    make_gateway: MakeGateway,
) -> None:
    event = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    async with answered_by(make_gateway, event, 5000) as gateway:
        answer = await gateway.ask(chat(model="small-7b", stream=True))
    assert chunks(answer.body)[-1]["forebay"]["incomplete"]


@pytest.mark.parametrize("value", [b'"x"', b"1", b"null"])
async def test_an_event_that_is_a_plain_value_passes_and_envoy_lives(
    make_gateway: MakeGateway, value: bytes
) -> None:
    """Envoy 1.40 crashes where it counts such a stream; those of `server: other` it does not."""
    event = b"event: error\ndata: %b\n\n" % value
    async with answered_by(make_gateway, event, len(event)) as gateway:
        envoy = gateway.stack.pid("envoy")
        for _ in range(2):
            answer = await gateway.ask(chat(model="small-7b", stream=True))
            assert answer.status == 200
            assert answer.body.startswith(event)  # and the end that the server did not write
            assert chunks(answer.body[len(event) :])[-1]["forebay"]["reason"] == "upstream_error"
            assert answer.headers["content-type"] == "text/event-stream"
        assert gateway.stack.pid("envoy") == envoy


async def test_a_server_that_never_begins_is_cut(gateway: Gateway) -> None:
    """Envoy takes no piece of ours before the server's first."""
    gateway.set_faults("small", {"stall_after": 0})
    began = time.monotonic()
    with pytest.raises(aiohttp.ClientPayloadError):
        await gateway.ask(chat(model="small-7b", stream=True, max_tokens=50))
    assert 1.6 < time.monotonic() - began < 3.0


async def test_an_answer_that_is_not_streamed_is_ended_by_its_server_if_that_can_be_asked(
    gateway: Gateway,
) -> None:
    answer = await gateway.ask(chat(model="small-7b", max_tokens=5000))
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["finish_reason"] == "abort"


async def test_nobody_is_told_to_have_been_asked_who_was_not(gateway: Gateway) -> None:
    asked = gateway.metric("forebay_asked_to_stop_total")
    answer = await gateway.ask(chat(model="large-70b", max_tokens=5000))
    assert answer.status == 504
    assert gateway.metric("forebay_asked_to_stop_total") == asked


async def test_an_incomplete_answer_is_not_stored(gateway: Gateway) -> None:
    for _ in range(2):
        answer = await gateway.ask(
            chat(model="small-7b", stream=True, max_tokens=4999, temperature=0)
        )
        assert "fwd=" in answer.headers["cache-status"]
        assert chunks(answer.body)[-1]["forebay"]["incomplete"]


async def test_a_guarded_answer_is_stored_when_it_is_whole(gateway: Gateway) -> None:
    body = chat(model="small-7b", stream=True, max_tokens=7, temperature=0)
    first, second = await gateway.ask(body), await gateway.ask(body)
    assert "hit" in second.headers["cache-status"]

    def text(answer_body: bytes) -> str:
        parts = [c["choices"][0]["delta"].get("content", "") for c in chunks(answer_body)]
        return "".join(parts)

    assert text(first.body) == text(second.body)


async def test_many_at_once_all_end_and_no_slot_is_lost(gateway: Gateway) -> None:
    answers = await asyncio.gather(
        *(gateway.ask(chat(model="small-7b", stream=True, max_tokens=5000)) for _ in range(16))
    )
    for answer in answers:
        assert chunks(answer.body)[-1]["forebay"]["incomplete"]


async def test_a_client_that_leaves_frees_slot_and_server(gateway: Gateway) -> None:
    head = gateway.head("content-type: application/json")
    body = json.dumps(chat(model="small-7b", stream=True, max_tokens=5000)).encode()
    async with gateway.raw() as (reader, writer):
        writer.write(
            head.replace(b"\r\n\r\n", b"\r\ncontent-length: %d\r\n\r\n" % len(body)) + body
        )
        await writer.drain()
        await reader.readuntil(b"data: ")
    await gateway.until_async(lambda: gateway.running("small") == 0, "the server still works")
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 0, "slot leaked")


# --- servers that fall silent or fail ----------------------------------------------------------


@pytest.fixture(scope="module")
def silent_stack(make_gateway: MakeGateway) -> Gateway:
    """Half a second of silence is a stall; the deadline is far away."""
    policy = {
        "pools": GUARDED,
        "routing": {"fallback": {}},
        "response": {"deadline": "20s", "stall": "500ms"},
    }
    return make_gateway(policy=policy)


@pytest.fixture
def silent(silent_stack: Gateway) -> Gateway:
    """With servers that are trusted again: after three bad endings one is left alone for a while,
    and another pool answers."""
    for pool, model in (("small", "small-7b"), ("large", "large-70b")):
        silent_stack.set_faults(pool, {})
        body = chat(model=model, stream=True, max_tokens=2)
        silent_stack.until(
            lambda body=body, pool=pool: (
                asyncio.run(silent_stack.ask(body)).headers.get("x-forebay-served-by") == pool
            ),
            f"{pool} is not trusted again",
            limit_s=10,
        )
    return silent_stack


@pytest.mark.parametrize("model", ["small-7b", "large-70b"])
async def test_a_server_that_stops_without_closing(silent: Gateway, model: str) -> None:
    pool = model.partition("-")[0]
    silent.set_faults(pool, {"stall_after": 5})
    began = time.monotonic()
    body = chat(model=model, stream=True, max_tokens=50, stream_options={"include_usage": True})
    answer = await silent.ask(body)
    assert 0.4 < time.monotonic() - began < 1.5
    *texts, last, usage = chunks(answer.body)
    assert last["forebay"] == {"incomplete": True, "reason": "stall"}
    assert last["choices"][0]["finish_reason"] == "length"
    assert sum(bool(c["choices"][0]["delta"].get("content")) for c in texts) == 5
    assert usage["usage"]["completion_tokens"] == 5
    assert usage["forebay"]["usage_estimated"]
    silent.set_faults(pool, {})
    await silent.until_async(lambda: silent.running(pool) == 0, "the server still works")
    silent.wait_until_idle()
    closed = f'forebay_closed_answers_total{{pool="{pool}",reason="stall"}}'
    assert silent.metric(closed) >= 1


async def test_a_server_that_never_sends_a_first_token(silent: Gateway) -> None:
    """The head has come, and Envoy takes no piece of ours before the server's first."""
    silent.set_faults("small", {"stall_after": 0})
    began = time.monotonic()
    with pytest.raises(aiohttp.ClientPayloadError):
        await silent.ask(chat(model="small-7b", stream=True, max_tokens=50))
    assert 0.4 < time.monotonic() - began < 2.5
    silent.set_faults("small", {})
    await silent.until_async(lambda: silent.running("small") == 0, "the server still works")
    silent.wait_until_idle()


async def test_a_server_that_does_not_answer_at_all(silent: Gateway) -> None:
    silent.set_faults("small", {"latency_ms": 8000})
    began = time.monotonic()
    answer = await silent.ask(chat(model="small-7b", stream=True, max_tokens=50))
    assert 0.4 < time.monotonic() - began < 1.5
    assert (answer.status, answer.code) == (504, "upstream_timeout")
    silent.set_faults("small", {})
    silent.wait_until_idle()


async def test_an_error_event_inside_the_stream(silent: Gateway) -> None:
    silent.set_faults("small", {"error_event_after": 4})
    body = chat(model="small-7b", stream=True, max_tokens=50, temperature=0)
    for _ in range(2):
        answer = await silent.ask(body)
        assert "fwd=" in answer.headers["cache-status"]  # never stored
        *texts, last = chunks(answer.body)
        assert last["forebay"] == {"incomplete": True, "reason": "upstream_error"}
        assert sum(bool(c["choices"][0]["delta"].get("content")) for c in texts) == 4
        assert b'"error"' not in answer.body
    silent.set_faults("small", {})
    silent.wait_until_idle()


async def test_a_server_that_closes_without_done(make_gateway: MakeGateway) -> None:
    event = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}'  # no blank line
    async with answered_by(make_gateway, event, len(event)) as gateway:
        answer = await gateway.ask(chat(model="small-7b", stream=True))
        first, last = chunks(answer.body)
        assert first["choices"][0]["delta"]["content"] == "a"
        assert last["forebay"] == {"incomplete": True, "reason": "upstream_error"}


async def test_slow_is_not_silent(silent: Gateway) -> None:
    """Each token comes within the stall time, all together take thrice as long."""
    answer = await silent.ask(chat(model="small-7b", stream=True, max_tokens=300))
    assert chunks(answer.body)[-1]["choices"][0]["finish_reason"] == "length"
    assert b'"incomplete"' not in answer.body
