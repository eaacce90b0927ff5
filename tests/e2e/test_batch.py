"""Class batch through real Envoy: it makes way, and waits for minutes where nobody else may."""

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway

NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}
CLASSES = {"acme": {}, "nightly": {"class": "batch"}}
STOPPED = 'forebay_stopped_total{{pool="{}",reason="batch"}}'.format


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """Batch may fill both slots of a pool, and makes way. The large pool cannot be asked to stop,
    but guards its streams."""
    return make_gateway(
        policy={
            "pools": {"small": {"slots": 2}, "large": {"slots": 1, "server": "other"}},
            "admission": {"high_water": 9, "batch": {"spare": 0.0, "when_needed": "stop"}},
            "routing": {"fallback": {}},
            "response": {"grace": "1s"},
            "tenants": CLASSES,
        },
    )


async def begun(gateway: Gateway, pool: str, count: int, **more: Any) -> "asyncio.Task[Answer]":
    """A batch request that takes half a minute, as the last of so many that run."""
    model = {"small": "small-7b", "large": "large-70b"}[pool]
    body = chat(f"Story {count}", model=model, max_tokens=6000, **more)
    asking = asyncio.create_task(gateway.ask(body, headers=NIGHTLY))
    await gateway.until_async(lambda: gateway.running(pool) == count, "not running")
    return asking


def words(answer: Answer) -> int:
    return sum(
        bool(e["choices"] and e["choices"][0]["delta"].get("content")) for e in answer.events
    )


async def test_the_batch_answer_that_began_last_makes_way_marked_and_counted(
    gateway: Gateway,
) -> None:
    before = gateway.metric(STOPPED("small"))
    stored = gateway.metric("forebay_cache_stored_total")
    asked = gateway.metric("forebay_asked_to_stop_total")
    as_json = await begun(gateway, "small", 1, temperature=0)
    usage = {"stream_options": {"include_usage": True}}
    stream = await begun(gateway, "small", 2, temperature=0, stream=True, **usage)
    await asyncio.sleep(0.3)
    began = time.monotonic()
    first = await gateway.ask(chat(max_tokens=100))
    assert first.status == 200
    assert time.monotonic() - began < 1.5
    ended = await stream
    *_, last, count = ended.events
    assert last["choices"][0]["finish_reason"] == "abort"
    assert count["usage"]["completion_tokens"] == words(ended) > 20
    assert not as_json.done(), "one was enough"
    assert gateway.metric(STOPPED("small")) == before + 1

    both = await asyncio.gather(*(gateway.ask(chat(max_tokens=60)) for _ in range(2)))
    assert [answer.status for answer in both] == [200, 200]
    partial = (await as_json).json
    assert partial["choices"][0]["finish_reason"] == "abort"
    assert 20 < partial["usage"]["completion_tokens"] < 6000
    assert gateway.metric(STOPPED("small")) == before + 2
    gateway.wait_until_accounted()
    assert gateway.metric("forebay_cache_stored_total") == stored, "nothing of it is stored"
    assert gateway.metric("forebay_asked_to_stop_total") == asked, "which tells of deadlines"
    assert gateway.metric('forebay_endings_total{ending="whole",pool="small"') >= 5


async def test_who_waited_for_the_answer_of_one_that_makes_way_gets_a_whole_one(
    gateway: Gateway,
) -> None:
    other = await begun(gateway, "small", 1)
    body = chat("All ask this", temperature=0, model="small-7b", max_tokens=400)  # two seconds
    leader = asyncio.create_task(gateway.ask(body, headers=NIGHTLY))
    await gateway.until_async(lambda: gateway.running("small") == 2, "not running")
    follower = asyncio.create_task(gateway.ask(body, headers=NIGHTLY))
    await asyncio.sleep(0.3)
    before = gateway.metric(STOPPED("small"))
    assert (await gateway.ask(chat(max_tokens=5))).status == 200
    assert gateway.metric(STOPPED("small")) - before == 1
    assert (await leader).json["choices"][0]["finish_reason"] == "abort"
    whole = await follower
    assert whole.json["choices"][0]["finish_reason"] == "length"
    assert whole.json["usage"]["completion_tokens"] == 400
    again = await gateway.ask(body, headers=NIGHTLY)
    assert again.headers["cache-status"].startswith("forebay; hit")
    assert again.json["usage"]["completion_tokens"] == 400, "the whole one is stored"
    other.cancel()


async def test_a_guarded_stream_makes_way_by_our_own_hand(gateway: Gateway) -> None:
    stream = await begun(gateway, "large", 1, stream=True)
    await asyncio.sleep(0.3)
    whole = gateway.metric('forebay_endings_total{ending="whole",pool="large"')
    first = await gateway.ask(chat(model="large-70b", max_tokens=5))
    assert first.status == 200
    last = (await stream).events[-1]
    assert last["forebay"] == {"incomplete": True, "reason": "batch"}
    assert last["choices"][0]["finish_reason"] == "length"
    gateway.wait_until_accounted()
    assert gateway.metric('forebay_endings_total{ending="whole",pool="large"') == whole + 2
    closed = 'forebay_closed_answers_total{pool="large",reason="batch"}'
    assert gateway.metric(closed) == gateway.metric(STOPPED("large")) == 1


async def test_what_could_only_be_cut_runs_on(gateway: Gateway) -> None:
    before = gateway.metric("forebay_stopped_total")
    body = chat(model="large-70b", max_tokens=200)  # one second
    as_json = asyncio.create_task(gateway.ask(body, headers=NIGHTLY))
    await gateway.until_async(lambda: gateway.running("large") == 1, "not running")
    assert (await gateway.ask(chat(model="large-70b", max_tokens=1))).status == 200
    assert (await as_json).json["usage"]["completion_tokens"] == 200
    assert gateway.metric("forebay_stopped_total") == before


async def test_a_server_that_does_not_react_loses_nothing(gateway: Gateway) -> None:
    gateway.set_faults("small", {"ignore_aborts": True})
    running = [
        asyncio.create_task(gateway.ask(chat(max_tokens=400), headers=NIGHTLY)) for _ in range(2)
    ]
    await gateway.until_async(lambda: gateway.running("small") == 2, "not running")
    before = gateway.metric(STOPPED("small"))
    waiting = await gateway.ask(chat(max_tokens=1))
    assert waiting.status == 200
    whole = await asyncio.gather(*running)
    assert [a.json["choices"][0]["finish_reason"] for a in whole] == ["length"] * 2
    # After the grace of a second another one is asked.
    assert 1 <= gateway.metric(STOPPED("small")) - before <= 2


# --- long waits -----------------------------------------------------------------------------------


def _hold_briefly(document: Any) -> None:
    manager = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    filters = manager["typed_config"]["http_filters"]
    (ours,) = (f for f in filters if f["name"] == "envoy.filters.http.ext_proc")
    ours["typed_config"]["message_timeout"] = "2s"


async def test_batch_waits_beyond_envoys_limit_and_a_hung_processor_still_ends_others(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(
        policy={
            "pools": {"small": {"slots": 1}},
            "admission": {"max_wait": "1s", "high_water": 9, "batch": {"max_wait": "4s"}},
            "routing": {"fallback": {}},
            "response": {"deadline": "4s"},
            "tenants": CLASSES,
        },
        edit=_hold_briefly,
    )
    holder = asyncio.create_task(gateway.ask(chat(max_tokens=600)))  # three seconds
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 1, "not running")
    long = asyncio.create_task(gateway.ask(chat(max_tokens=500), headers=NIGHTLY))
    await gateway.until_async(lambda: gateway.status("small")["batch_waiting"] == 1, "no queue")
    late = asyncio.create_task(gateway.ask(chat(max_tokens=1), headers=NIGHTLY))
    timed_out = await gateway.ask(chat(max_tokens=1))
    assert timed_out.code == "queue_timeout", "after a second, as ever"
    assert (await holder).status == 200
    refused = await late
    assert (refused.status, refused.code) == (429, "queue_timeout")
    assert refused.headers["server-timing"].startswith("queue;dur=40")
    served = await long
    assert served.status == 200
    assert float(served.headers["server-timing"].partition("dur=")[2].partition(";")[0]) > 2500
    # 2.5 s after 2.5 s of waiting: its deadline of 4 s began with its slot.
    assert served.json["choices"][0]["finish_reason"] == "length"

    processor = gateway.stack.pid("processor")
    os.kill(processor, signal.SIGSTOP)
    try:
        began = time.monotonic()
        hung = await gateway.ask(chat(max_tokens=1))
        took = time.monotonic() - began
    finally:
        os.kill(processor, signal.SIGCONT)
    assert hung.status in (503, 504)
    assert 1.9 < took < 3
    gateway.wait_until_idle()
