"""A batch answer makes way on real vLLM: it ends as the server ends it, and its slot is given."""

import asyncio
import time

from tests.e2e.client import Gateway
from tests.gateways import MakeGateway
from tests.vllm.asked import STORY
from tests.vllm.servers import Server

BATCH = {"x-request-class": "batch"}
LONG = {"ignore_eos": True, **{name: STORY[name] for name in ("model", "messages", "max_tokens")}}


async def test_a_batch_stream_makes_way_with_exact_usage_and_the_other_gets_its_slot(
    make_gateway: MakeGateway, shared_gateway: Gateway, large: Server
) -> None:
    urls = {pool: (url,) for pool, url in shared_gateway.stack.config.backend_urls.items()}
    gateway = make_gateway(
        backends=urls,
        policy={
            "pools": {"large": {"slots": 1}},
            "admission": {"high_water": 4, "batch": {"when_needed": "stop"}},
        },
    )
    generated = large.metric("vllm:generation_tokens_total")
    usage = {"stream_options": {"include_usage": True}}
    batch = asyncio.create_task(gateway.ask({**LONG, "stream": True, **usage}, headers=BATCH))
    await gateway.until_async(
        lambda: large.metric("vllm:generation_tokens_total") > generated + 10, "no tokens"
    )
    began = time.monotonic()
    other = await gateway.ask({**LONG, "max_tokens": 5})
    took_s = time.monotonic() - began
    ended = await batch
    *chunks, last, counted = ended.events
    assert last["choices"][0]["finish_reason"] == "abort"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * len(chunks)
    assert other.status == 200
    assert other.json["usage"]["completion_tokens"] == 5
    assert other.headers["server-timing"].endswith('desc="position 1"'), "it had to wait"
    waited_ms = float(other.headers["server-timing"].partition("dur=")[2].partition(";")[0])
    large.wait_until_idle()
    by_server = large.metric("vllm:generation_tokens_total") - generated - 5
    assert counted["usage"]["completion_tokens"] == by_server > 10
    print(f"\n  made way in {waited_ms:.0f} ms, answered after {took_s:.2f} s")
    assert waited_ms < 1000
    assert gateway.metric('forebay_stopped_total{pool="large",reason="batch"}') == 1
    gateway.wait_until_idle()
