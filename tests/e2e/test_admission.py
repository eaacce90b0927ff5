"""Slots, queue and marks through real Envoy: bounded, and honest to those who are shed."""

import asyncio
import re

import openai
import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway

# 100 ms a token: an answer of 5 tokens takes half a second, of 50 five seconds.
SLOW = ("--decode-ms", "100")


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """Two slots and a queue of four before the small pool; a wait of 2 s at most."""
    return make_gateway(
        policy={
            "pools": {"small": {"slots": 2}, "large": {"slots": 2}},
            "admission": {"max_wait": "2s", "high_water": 4, "low_water": 1},
            "routing": {"fallback": {}},
            "cache": {"exact": None},
        },
        sim_args={"small": (*SLOW, "--max-num-seqs", "8")},
    )


def queued(answer: Answer) -> tuple[float, int]:
    """Milliseconds in the queue and the place there, as the client is told."""
    timing = re.fullmatch(
        r'queue;dur=([0-9.]+);desc="position (\d+)"', answer.headers["server-timing"]
    )
    assert timing
    return float(timing[1]), int(timing[2])


async def test_no_more_requests_run_than_there_are_slots(gateway: Gateway) -> None:
    asking = asyncio.create_task(gateway.ask_many(6, chat(max_tokens=5)))
    most = 0.0
    while not asking.done():
        most = max(most, await asyncio.to_thread(gateway.running, "small"))
        await asyncio.sleep(0.02)
    assert [answer.status for answer in asking.result()] == [200] * 6
    assert most == 2


async def test_each_choice_of_each_prompt_takes_a_slot(gateway: Gateway) -> None:
    pair = asyncio.create_task(gateway.ask(chat(n=2, max_tokens=8)))
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 2, "not running")
    after_it = await gateway.ask(chat(max_tokens=1))
    assert queued(after_it)[0] > 300
    assert (await pair).status == 200


async def test_who_waited_is_told_how_long(gateway: Gateway) -> None:
    answers = await gateway.ask_many(3, chat(max_tokens=5))
    first, second, third = sorted(map(queued, answers))
    assert first == second == (0.0, 0)
    assert 300 < third[0] < 2000
    assert third[1] == 1


async def test_above_the_high_mark_requests_are_shed_until_the_low_mark(gateway: Gateway) -> None:
    answers = await gateway.ask_many(12, chat(max_tokens=5))
    statuses = [answer.status for answer in answers]
    assert statuses.count(200) == 6  # two slots, four waiting
    assert statuses.count(429) == 6
    for shed in (answer for answer in answers if answer.status == 429):
        assert shed.code == "overloaded"
        assert 1 <= int(shed.headers["retry-after"]) <= 60
    assert len(gateway.received("small")) == 6, "a 429 of ours is never tried again by Envoy"


async def test_shedding_goes_on_until_the_low_mark(gateway: Gateway) -> None:
    asking = asyncio.create_task(gateway.ask_many(7, chat(max_tokens=5)))
    await gateway.until_async(lambda: gateway.status("small")["shedding"], "never shed")
    await gateway.until_async(lambda: gateway.status("small")["queue_depth"] == 2, "never drained")
    between_the_marks = await gateway.ask(chat(max_tokens=1))
    assert between_the_marks.status == 429
    await gateway.until_async(lambda: not gateway.status("small")["shedding"], "never opened again")
    assert (await gateway.ask(chat(max_tokens=1))).status == 200
    await asking


async def test_the_official_client_sees_a_rate_limit_error(gateway: Gateway) -> None:
    asking = asyncio.create_task(gateway.ask_many(8, chat(max_tokens=10)))
    await gateway.until_async(lambda: gateway.status("small")["shedding"], "never shed")
    with pytest.raises(openai.RateLimitError) as refused:
        await asyncio.to_thread(
            gateway.client().chat.completions.create,
            model="small-7b",
            messages=[{"role": "user", "content": "Hi"}],
        )
    assert refused.value.code == "overloaded"
    await asking


async def test_a_wait_ends_after_max_wait_with_429(gateway: Gateway) -> None:
    answers = await gateway.ask_many(4, chat(max_tokens=40))  # 4 s each, two at a time
    timed_out = [answer for answer in answers if answer.status == 429]
    assert len(timed_out) == 2
    assert {answer.code for answer in timed_out} == {"queue_timeout"}
    assert len(gateway.received("small")) == 2


async def test_a_client_that_leaves_the_queue_frees_its_place_at_once(gateway: Gateway) -> None:
    gone = gateway.metric('forebay_decisions_total{decision="client_gone"')
    holders = [asyncio.create_task(gateway.ask(chat(max_tokens=15))) for _ in range(2)]
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 2, "not running")
    waiting = asyncio.create_task(gateway.ask(chat(max_tokens=1)))
    await gateway.until_async(lambda: gateway.status("small")["queue_depth"] == 1, "not queued")
    waiting.cancel()
    await gateway.until_async(
        lambda: gateway.status("small")["queue_depth"] == 0, "still in the queue", limit_s=0.5
    )
    assert [answer.status for answer in await asyncio.gather(*holders)] == [200, 200]
    assert len(gateway.received("small")) == 2
    assert gateway.metric('forebay_decisions_total{decision="client_gone"') == gone + 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_mid_answer_frees_slot_and_engine(
    gateway: Gateway, stream: bool
) -> None:
    asking = asyncio.create_task(gateway.ask(chat(max_tokens=50, stream=stream)))
    await gateway.until_async(lambda: gateway.running("small") == 1, "not running")
    asking.cancel()
    await gateway.until_async(
        lambda: gateway.status("small")["in_flight"] == 0, "the slot is still held", limit_s=1
    )
    await gateway.until_async(
        lambda: gateway.running("small") == 0, "the engine goes on", limit_s=1
    )


async def test_a_client_that_leaves_before_its_body_is_whole_holds_nothing(
    gateway: Gateway,
) -> None:
    async with gateway.raw() as (_, writer):
        writer.write(gateway.head("content-length: 99") + b"{")
        await writer.drain()
        await asyncio.sleep(0.1)
    await gateway.until_async(
        lambda: gateway.status("small")["in_flight"] == 0, "a slot is held", limit_s=1
    )
    assert gateway.received("small") == []


async def test_while_every_pool_sheds_the_body_is_not_even_read(gateway: Gateway) -> None:
    gateway.set_faults("large", {"latency_ms": 1500})
    asking = [
        asyncio.create_task(gateway.ask_many(8, chat(max_tokens=12))),
        asyncio.create_task(gateway.ask_many(8, chat("Why", max_tokens=12))),
    ]
    for pool in ("small", "large"):
        await gateway.until_async(
            lambda pool=pool: gateway.status(pool)["shedding"], f"{pool} never shed"
        )
    async with gateway.raw() as (reader, writer):
        writer.write(gateway.head("content-length: 99"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 1)
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: " in head
    await asyncio.gather(*asking)


async def test_a_tenant_has_the_pools_that_its_policy_names(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(policy={"tenants": {"acme": {"pools": ["small"]}}})
    limited = await gateway.ask(chat("Explain why", max_tokens=1))
    assert limited.headers["x-forebay-served-by"] == "small"
    named = await gateway.ask(chat(model="large-70b"))
    assert (named.status, named.code) == (403, "model_not_allowed")
    other = await gateway.ask(
        chat("Explain why", max_tokens=1), headers={"authorization": "Bearer sk-demo-nightly"}
    )
    assert other.headers["x-forebay-served-by"] == "large"
    assert [model.id for model in gateway.client().models.list()] == ["auto", "small-7b"]
    assert gateway.metric('forebay_decisions_total{decision="admitted",tenant="acme"}') == 1
    assert gateway.metric('forebay_decisions_total{decision="admitted",tenant="default"}') == 1
