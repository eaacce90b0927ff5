"""The exact cache through real Envoy: what is stored, for whom, and how it is given again."""

import asyncio
from typing import Any

import pytest

from tests.e2e.client import CHAT, Answer, Gateway, chat
from tests.gateways import MakeGateway

NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(
        policy={"response": {"deadline": "1s"}, "tenants": {"acme": {}, "nightly": {}}}
    )


def cold(text: str, **more: Any) -> dict[str, Any]:
    return chat(text, temperature=0, max_tokens=4, **more)


def hit(answer: Answer) -> bool:
    return answer.headers.get("cache-status", "").startswith("forebay; hit")


async def test_the_second_of_two_equal_requests_reaches_no_model(gateway: Gateway) -> None:
    first = await gateway.ask(cold("one"))
    assert first.headers["cache-status"] == "forebay; fwd=uri-miss"
    second = await gateway.ask(b'{"temperature":0,"max_tokens":4,' + _rest("one"))
    assert second.headers["cache-status"].startswith("forebay; hit; ttl=3")
    assert second.headers["age"] == "0"
    assert second.headers["content-type"] == "application/json"
    assert second.headers["x-forebay-route"] == "cache; reason=exact"
    assert len(gateway.received("small")) == 1
    a, b = first.json, second.json
    assert a["id"] != b["id"] == f"chatcmpl-{second.headers['x-request-id']}"
    assert a["choices"][0]["message"]["content"] == b["choices"][0]["message"]["content"]
    assert a["usage"] == b["usage"]


def _rest(text: str) -> bytes:
    # Other order, whitespace and escapes than json.dumps makes.
    return b' "messages": [{"content":"%b","role":"user"}], "model":"\\u0061uto"}' % text.encode()


@pytest.mark.parametrize("first_streams", [True, False])
async def test_what_was_stored_from_one_shape_is_given_in_the_other(
    gateway: Gateway, first_streams: bool
) -> None:
    text = f"shapes {first_streams}"
    first = await gateway.ask(cold(text, stream=first_streams))
    stream = await gateway.ask(cold(text, stream=True, stream_options={"include_usage": True}))
    plain = await gateway.ask(cold(text))
    bare = await gateway.ask(cold(text, stream=True))
    assert not hit(first)
    assert hit(stream)
    assert hit(plain)
    assert hit(bare)
    assert len(gateway.received("small")) == 1
    assert stream.headers["content-type"] == "text/event-stream"
    *chunks, usage = stream.events
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert said == plain.json["choices"][0]["message"]["content"] == "This is a simulated"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["usage"] == plain.json["usage"]
    assert len(bare.events) == len(chunks)


def test_the_official_client_reads_a_replayed_stream(gateway: Gateway) -> None:
    def ask() -> str:
        chunks = gateway.client().chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "official"}],
            temperature=0,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert ask() == ask()
    assert len(gateway.received("small")) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"max_tokens": 5}),
        ({}, {"seed": 1}),
        ({"seed": 12345678901234567890}, {"seed": 12345678901234567891}),
        ({}, {"unknown_member": "x"}),
        ({}, {"model": "small-7b"}),
        ({}, {"messages": [{"role": "user", "content": "Other"}]}),
    ],
)
async def test_whatever_can_change_the_answer_is_in_the_key(
    gateway: Gateway, one: dict[str, Any], other: dict[str, Any]
) -> None:
    name = f"key {one} {other}"
    await gateway.ask(cold(name) | one)
    second = await gateway.ask(cold(name) | other)
    if "model" in other:  # the same pool by its own name: another key, still
        assert not hit(second)
    assert not hit(second)
    assert second.status == 200


async def test_what_has_a_query_is_not_cached(gateway: Gateway) -> None:
    """It reaches the server, which may answer by it."""
    for _ in range(2):
        answer = await gateway.ask(cold("query"), path=f"{CHAT}?api-version=2")
        assert answer.headers["cache-status"] == "forebay; fwd=bypass"
    assert not hit(await gateway.ask(cold("query")))


async def test_what_cannot_change_it_is_not(gateway: Gateway) -> None:
    await gateway.ask(cold("user", user="a"))
    assert hit(await gateway.ask(cold("user", user="b", metadata={"x": "y"})))


async def test_tenants_never_share_answers(gateway: Gateway) -> None:
    await gateway.ask(cold("shared?"))
    assert not hit(await gateway.ask(cold("shared?"), headers=NIGHTLY))
    assert hit(await gateway.ask(cold("shared?"), headers=NIGHTLY))


@pytest.mark.parametrize("temperature", [None, 0.7, 1])
async def test_a_drawn_answer_is_cached_only_if_the_client_asks(
    gateway: Gateway, temperature: float | None
) -> None:
    body = chat(f"drawn {temperature}", max_tokens=2, temperature=temperature)
    for _ in range(2):
        assert (await gateway.ask(body)).headers["cache-status"] == "forebay; fwd=bypass"
    asked = {"cache-control": "max-age=60"}
    assert not hit(await gateway.ask(body, headers=asked))
    assert hit(await gateway.ask(body, headers=asked))
    assert not hit(await gateway.ask(body))


async def test_cache_control_is_obeyed(gateway: Gateway) -> None:
    await gateway.ask(cold("control"), headers={"cache-control": "no-store"})
    assert not hit(await gateway.ask(cold("control")))  # the first was not stored, this one is
    assert hit(await gateway.ask(cold("control")))
    assert not hit(await gateway.ask(cold("control"), headers={"cache-control": "no-store"}))
    fresh = await gateway.ask(cold("control"), headers={"cache-control": "No-Cache"})
    assert fresh.headers["cache-status"] == "forebay; fwd=request"
    await asyncio.sleep(1.1)
    assert not hit(await gateway.ask(cold("control"), headers={"cache-control": "max-age=1"}))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        {"error_event_after": 2},
        {"reset_after": 2},
        {"status": {"value": 400, "count": 1}},
    ],
)
async def test_a_failed_answer_is_not_stored(
    gateway: Gateway, fault: dict[str, Any], stream: bool
) -> None:
    text = f"failed {fault} {stream}"
    gateway.set_faults("small", fault)
    gateway.set_faults("large", fault)
    try:
        await gateway.ask(cold(text, stream=stream))
    except Exception as cut:  # a broken transfer
        assert "reset_after" in fault, cut
    gateway.set_faults("small", {})
    assert not hit(await gateway.ask(cold(text, stream=stream)))


async def test_an_answer_ended_by_the_deadline_is_not_stored(gateway: Gateway) -> None:
    for stream in (True, False):
        body = chat("partial", temperature=0, max_tokens=5000, stream=stream)
        assert b'"finish_reason":"abort"' in (await gateway.ask(body)).body
        assert not hit(await gateway.ask(body))


async def test_a_fallbacks_answer_is_not_stored_as_the_wanted_pools(gateway: Gateway) -> None:
    gateway.set_faults("small", {"status": 503})
    fallback = await gateway.ask(cold("fallback"))
    assert fallback.headers["x-forebay-served-by"] == "large"
    gateway.set_faults("small", {})
    again = await gateway.ask(cold("fallback"))
    assert not hit(again)
    assert again.headers["x-forebay-served-by"] == "small"


async def test_a_cached_answer_is_given_while_the_pool_is_dead(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    first = await gateway.ask(cold("kept"))
    assert first.headers["x-forebay-served-by"] == "small"
    gateway.stack.kill("small")
    gateway.stack.kill("large")
    await gateway.until_async(lambda: not gateway.status("small")["up"], "still called up")
    assert hit(await gateway.ask(cold("kept")))


async def test_an_answer_is_not_given_after_its_time(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(policy={"cache": {"exact": {"ttl": "1s"}}})
    await gateway.ask(cold("old"))
    assert hit(await gateway.ask(cold("old")))
    await asyncio.sleep(1.1)
    assert not hit(await gateway.ask(cold("old")))
