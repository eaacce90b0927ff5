"""Identical requests under way, through real Envoy: one reaches the model, the others get its
answer, or go on by themselves."""

import asyncio
import json
from typing import Any

import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway

NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}
SLOW = {"latency_ms": 1500}


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    # With one slot and no queue a follower that took a slot would be refused.
    return make_gateway(
        policy={
            "pools": {"small": {"slots": 1}},
            "admission": {
                "max_wait": "4s",
                "high_water": 0,
                "low_water": 0,
                "hard_water": 0,
                "queue_bytes": "30KiB",
            },
            "routing": {"fallback": {"small": [], "large": []}},
            "response": {"deadline": "8s"},
            "tenants": {"acme": {}, "nightly": {}},
        }
    )


def cold(text: str, **more: Any) -> dict[str, Any]:
    return chat(text, model="small-7b", temperature=0, max_tokens=4, **more)


def whole(gateway: Gateway, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return gateway.head("content-type: application/json", f"content-length: {len(data)}") + data


def said(answer: Answer) -> str:
    return answer.json["choices"][0]["message"]["content"]


async def test_of_ten_equal_requests_one_reaches_the_model(gateway: Gateway) -> None:
    gateway.set_faults("small", SLOW)
    answers = await gateway.ask_many(10, cold("ten"))
    assert [answer.status for answer in answers] == [200] * 10
    assert len(gateway.received("small")) == 1
    assert len({said(answer) for answer in answers}) == 1
    assert len({answer.json["id"] for answer in answers}) == 10
    status = sorted(answer.headers["cache-status"] for answer in answers)
    assert status == ["forebay; fwd=uri-miss"] + ["forebay; fwd=uri-miss; collapsed"] * 9
    assert gateway.metric('forebay_cache_requests_total{result="collapsed"') == 9


async def test_a_stream_and_a_plain_request_share_a_flight(gateway: Gateway) -> None:
    gateway.set_faults("small", SLOW)
    asked = asyncio.create_task(gateway.ask(cold("shapes", stream=True)))
    await asyncio.sleep(0.3)
    plain = await gateway.ask(cold("shapes"))
    stream = await asked
    text = "".join(
        choice["delta"].get("content") or ""
        for event in stream.events
        for choice in event["choices"]
    )
    assert said(plain) == text
    assert plain.headers["cache-status"].endswith("; collapsed")


async def test_who_may_not_share_an_answer_does_not_wait_for_it(gateway: Gateway) -> None:
    gateway.set_faults("small", SLOW)
    first = asyncio.create_task(gateway.ask(cold("mine")))
    await asyncio.sleep(0.3)
    other = await gateway.ask(cold("mine"), headers=NIGHTLY)
    fresh = await gateway.ask(cold("mine"), headers={"cache-control": "no-cache"})
    warm = await gateway.ask(chat("mine", model="small-7b", temperature=1, max_tokens=4))
    # Each wanted a slot of its own, and there is one.
    assert [one.status for one in (other, fresh, warm)] == [429] * 3
    assert (await first).status == 200


@pytest.mark.parametrize("faults", [{"status": 500}, {"reset_before": True}])
async def test_when_the_first_fails_the_others_go_on_by_themselves(
    gateway: Gateway, faults: dict[str, Any]
) -> None:
    gateway.set_faults("small", {"latency_ms": 600, **faults})
    first = asyncio.create_task(gateway.ask(cold(f"fails {faults}")))
    await asyncio.sleep(0.3)
    second = asyncio.create_task(gateway.ask(cold(f"fails {faults}")))
    await asyncio.sleep(0.1)
    gateway.set_faults("small", {})
    assert (await first).status >= 500
    answer = await second
    assert answer.status == 200
    assert answer.headers["cache-status"] == "forebay; fwd=uri-miss"


async def test_a_first_that_leaves_does_not_take_the_others_along(gateway: Gateway) -> None:
    gateway.set_faults("small", SLOW)
    async with gateway.raw() as (_, writer):
        writer.write(whole(gateway, cold("leaves")))
        await writer.drain()
        await asyncio.sleep(0.3)
        second = asyncio.create_task(gateway.ask(cold("leaves")))
        await asyncio.sleep(0.2)
    answer = await second
    assert answer.status == 200
    gateway.wait_until_idle()


async def test_who_waits_does_so_for_half_of_max_wait_at_most(gateway: Gateway) -> None:
    gateway.set_faults("small", {"latency_ms": 4000})
    first = asyncio.create_task(gateway.ask(cold("too slow")))
    await asyncio.sleep(0.2)
    began = asyncio.get_running_loop().time()
    second = await gateway.ask(cold("too slow"))
    waited_s = asyncio.get_running_loop().time() - began
    assert second.code == "overloaded"  # it wanted a slot of its own then
    assert 1.9 < waited_s < 3
    assert (await first).status == 200


async def test_who_waits_holds_no_body_or_no_more_than_a_queue_may(gateway: Gateway) -> None:
    gateway.set_faults("small", SLOW)
    long = "long " * 4000
    plain = await gateway.ask_many(4, cold(long))
    assert [answer.status for answer in plain] == [200] * 4
    # The body of such a stream is held, for it has to ask for its usage.
    streams = await gateway.ask_many(4, cold("a stream" + long, stream=True))
    assert sorted(answer.status for answer in streams) == [200, 200, 429, 429]
    again = await gateway.ask_many(2, cold("the room is free again" + long, stream=True))
    assert [answer.status for answer in again] == [200, 200]


async def test_a_follower_that_leaves_leaves_nothing_behind(gateway: Gateway) -> None:
    gateway.set_faults("small", SLOW)
    first = asyncio.create_task(gateway.ask(cold("behind")))
    await asyncio.sleep(0.3)
    async with gateway.raw() as (_, writer):
        writer.write(whole(gateway, cold("behind")))
        await writer.drain()
        await asyncio.sleep(0.3)
    assert (await first).status == 200
    gateway.wait_until_idle()
    assert gateway.metric('forebay_decisions_total{decision="client_gone"') >= 1
