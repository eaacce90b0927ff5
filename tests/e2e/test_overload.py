"""What a pool that sheds does instead, through real Envoy: in the configured order, and said."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway

NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}
SLOW = ("--decode-ms", "25")
HARD = "Explain why"  # goes to the large pool


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """One slot each and a queue of two; answers expire at once and may be given for long after."""
    return make_gateway(
        policy={
            "pools": {"small": {"slots": 1}, "large": {"slots": 1}},
            "admission": {
                "max_wait": "3s",
                "high_water": 2,
                "low_water": 0,
                "on_overload": ["cached", "smaller", "shed"],
            },
            "routing": {"fallback": {}},
            "cache": {"exact": {"ttl": "1ms", "stale": "1h"}},
            "tenants": {"acme": {}, "nightly": {"class": "batch"}},
        },
        sim_args={"small": SLOW, "large": SLOW},
    )


@asynccontextmanager
async def full(gateway: Gateway, pool: str, text: str, **more: Any) -> AsyncIterator[None]:
    """The pool's slot and its queue are taken; another request is shed."""
    count = 3
    leaving = [
        asyncio.create_task(gateway.ask(chat(text, max_tokens=40, **more))) for _ in range(count)
    ]
    await gateway.until_async(
        lambda: gateway.status(pool)["queue_depth"] == count - 1, "not queued"
    )
    try:
        yield
    finally:
        assert {answer.status for answer in await asyncio.gather(*leaving)} == {200}


async def test_a_stale_answer_is_better_than_none(gateway: Gateway) -> None:
    known = chat(HARD, temperature=0, max_tokens=2)
    first = await gateway.ask(known)
    again = await gateway.ask(known)
    assert again.headers["cache-status"] == "forebay; fwd=uri-miss"  # it has expired
    async with full(gateway, "large", HARD):
        stale = await gateway.ask(known)
        fresh_only = await gateway.ask(known, headers={"cache-control": "no-cache"})
    assert stale.status == 200
    assert stale.json["choices"] == first.json["choices"]
    assert stale.headers["x-forebay-route"] == "cache; reason=exact; degraded=stale"
    assert stale.headers["cache-status"].startswith("forebay; hit; ttl=-")
    assert fresh_only.headers["x-forebay-route"] == "small; reason=word-why; degraded=smaller"


async def test_a_smaller_model_is_better_than_none_and_is_not_taken_for_the_large_one(
    gateway: Gateway,
) -> None:
    asked = chat(f"{HARD} smaller", temperature=0, max_tokens=2)
    async with full(gateway, "large", HARD):
        smaller = await gateway.ask(asked)
    assert smaller.headers["x-forebay-served-by"] == "small"
    assert smaller.headers["x-forebay-route"] == "small; reason=word-why; degraded=smaller"
    assert gateway.metric('forebay_degraded_total{pool="small",way="smaller"}') >= 1
    stored = 'forebay_cache_stored_total{tenant="acme"}'
    before = gateway.metric(stored)
    large = await gateway.ask(asked)
    assert large.headers["x-forebay-served-by"] == "large"
    assert large.headers["cache-status"] == "forebay; fwd=uri-miss"
    assert gateway.metric(stored) == before + 1


async def test_a_model_that_the_client_named_is_not_changed(gateway: Gateway) -> None:
    async with full(gateway, "large", HARD):
        named = await gateway.ask(chat(HARD) | {"model": "large-70b"})
    assert (named.status, named.code) == (429, "overloaded")


async def test_where_nothing_helps_it_is_429_with_a_time(gateway: Gateway) -> None:
    async with full(gateway, "large", HARD), full(gateway, "small", "Tell me"):
        answer = await gateway.ask(chat(HARD))
    assert (answer.status, answer.code) == (429, "overloaded")
    assert 1 <= int(answer.headers["retry-after"]) <= 60


async def test_batch_sheds_first_and_waits_for_all_others(gateway: Gateway) -> None:
    holder = asyncio.create_task(gateway.ask(chat(max_tokens=30)))
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 1, "not running")
    batch = asyncio.create_task(gateway.ask(chat(max_tokens=2), headers=NIGHTLY))
    await gateway.until_async(lambda: gateway.status("small")["batch_waiting"] == 1, "not queued")
    second = await gateway.ask(chat(max_tokens=2), headers=NIGHTLY)  # half of the high mark: 1
    said_so = await gateway.ask(chat(max_tokens=2), headers={"x-request-class": "batch"})
    assert [answer.code for answer in (second, said_so)] == ["overloaded"] * 2
    others = [asyncio.create_task(gateway.ask(chat(max_tokens=20))) for _ in range(2)]
    await gateway.until_async(lambda: gateway.status("small")["queue_depth"] == 2, "not queued")
    assert [answer.status for answer in await asyncio.gather(holder, *others)] == [200] * 3
    assert not batch.done()
    assert (await batch).status == 200


async def test_a_class_that_does_not_exist_is_named(gateway: Gateway) -> None:
    answer = await gateway.ask(chat(), headers={"x-request-class": "urgent"})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "interactive, batch" in answer.json["error"]["message"]


async def test_a_waiting_request_is_told_its_place_when_its_time_is_up(gateway: Gateway) -> None:
    holder = asyncio.create_task(gateway.ask(chat(max_tokens=150)))
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 1, "not running")
    answer = await gateway.ask(chat(max_tokens=2))
    assert (answer.status, answer.code) == (429, "queue_timeout")
    assert answer.headers["server-timing"].startswith("queue;dur=30")
    assert answer.headers["server-timing"].endswith('desc="position 1"')
    assert (await holder).status == 200


async def test_shorter_answers_for_those_who_had_to_wait(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(
        policy={
            "pools": {"small": {"slots": 1}},
            "admission": {
                "high_water": 9,
                "on_overload": ["shorter", "shed"],
                "shorter_tokens": 3,
            },
            "tenants": {"acme": {}},
        },
    )

    async def ask(**more: Any) -> Answer:
        return await gateway.ask(chat("Tell me", temperature=0, **more))

    holder = asyncio.create_task(ask(max_tokens=60))
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 1, "not running")
    long, short, streamed, open_end = await asyncio.gather(
        ask(max_tokens=20), ask(max_completion_tokens=2), ask(max_tokens=20, stream=True), ask()
    )
    assert (await holder).json["usage"]["completion_tokens"] == 60
    counts = [answer.json["usage"]["completion_tokens"] for answer in (long, short, open_end)]
    assert counts == [3, 2, 3]
    assert long.json["choices"][0]["finish_reason"] == "length"
    assert streamed.events[-1]["choices"][0]["finish_reason"] == "length"
    assert len([e for e in streamed.events if e["choices"][0]["delta"].get("content")]) == 3
    routes = {answer.headers["x-forebay-route"] for answer in (long, streamed, open_end)}
    assert routes == {"small; reason=default; degraded=shorter"}
    assert short.headers["x-forebay-route"] == "small; reason=default"
    # A shortened answer is nobody else's.
    assert (await ask(max_tokens=20)).json["usage"]["completion_tokens"] == 20


async def test_at_the_hard_mark_not_even_the_body_is_read(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(
        policy={
            "pools": {"small": {"slots": 1}, "large": {"slots": 1}},
            "admission": {"high_water": 1, "hard_water": 1},
        },
        sim_args={"small": SLOW, "large": SLOW},
    )
    running = [
        asyncio.create_task(gateway.ask(chat(text, max_tokens=40)))
        for text in (HARD, "Tell me")
        for _ in range(2)
    ]
    for pool in ("small", "large"):
        await gateway.until_async(lambda p=pool: gateway.status(p)["queue_depth"] == 1, "no queue")
    async with gateway.raw() as (reader, writer):
        writer.write(gateway.head("content-type: application/json", "content-length: 1000000"))
        status_line = await asyncio.wait_for(reader.readline(), 2)  # not one byte of it was sent
    assert b" 429 " in status_line
    assert {answer.status for answer in await asyncio.gather(*running)} == {200}
