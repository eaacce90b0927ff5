"""Answers that end before the model is done: the client left, or the deadline came."""

import asyncio
import json
import time

import pytest

from tests.e2e.client import Gateway
from tests.gateways import MakeGateway
from tests.vllm.asked import STORY
from tests.vllm.servers import Server

DEADLINE_S = 3.0


@pytest.fixture(scope="module")
def hurried_gateway(make_gateway: MakeGateway, shared_gateway: Gateway) -> Gateway:
    urls = {pool: (url,) for pool, url in shared_gateway.stack.config.backend_urls.items()}
    return make_gateway(backends=urls, policy={"response": {"deadline": f"{DEADLINE_S:g}s"}})


async def _nobody_works_on_it(gateway: Gateway, server: Server, limit_s: float) -> None:
    await gateway.until_async(
        lambda: gateway.status(server.name)["in_flight"] == 0 and server.running() == 0,
        f"{gateway.status(server.name)}, vllm:num_requests_running {server.running()}",
        limit_s,
    )


async def test_a_client_that_leaves_a_stream_frees_slot_and_engine(
    gateway: Gateway, large: Server
) -> None:
    async with gateway.async_client() as client:
        stream = await client.chat.completions.create(**STORY, stream=True)
        for _ in range(5):
            await anext(stream)
        assert (gateway.status("large")["in_flight"], large.running()) == (1, 1)
        await stream.close()
        await _nobody_works_on_it(gateway, large, limit_s=2)


async def test_a_client_that_leaves_before_a_json_answer_frees_slot_and_engine(
    gateway: Gateway, large: Server
) -> None:
    async with gateway.async_client() as client:
        asking = asyncio.create_task(client.chat.completions.create(**STORY))
        await gateway.until_async(lambda: large.running() == 1, "it did not arrive")
        asking.cancel()
        await _nobody_works_on_it(gateway, large, limit_s=2)


def test_a_deadline_ends_a_stream_well_formed_with_exact_usage(
    hurried_gateway: Gateway, large: Server
) -> None:
    generated = large.metric("vllm:generation_tokens_total")
    began = time.monotonic()
    with hurried_gateway.client().chat.completions.with_streaming_response.create(
        **STORY, stream=True, stream_options={"include_usage": True}
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert DEADLINE_S - 0.1 < time.monotonic() - began < DEADLINE_S + 1

    assert lines.pop() == "data: [DONE]"
    *chunks, last, usage = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert last["choices"][0]["finish_reason"] == "abort"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * len(chunks)
    large.wait_until_idle()
    by_server = large.metric("vllm:generation_tokens_total") - generated
    assert usage["usage"]["completion_tokens"] == by_server
    assert 10 < by_server < 1900


def test_a_deadline_ends_a_json_answer_with_what_there_is(
    hurried_gateway: Gateway, large: Server
) -> None:
    generated = large.metric("vllm:generation_tokens_total")
    began = time.monotonic()
    answer = hurried_gateway.client().chat.completions.create(**STORY)
    assert DEADLINE_S - 0.1 < time.monotonic() - began < DEADLINE_S + 1

    # The client's types do not know it: `finish_reason` is vLLM's own word.
    assert answer.to_dict()["choices"][0]["finish_reason"] == "abort"  # type: ignore[index]
    assert answer.choices[0].message.content
    large.wait_until_idle()
    assert answer.usage
    by_server = large.metric("vllm:generation_tokens_total") - generated
    assert answer.usage.completion_tokens == by_server


def test_a_guarded_stream_is_ended_by_the_gateway_and_the_engine_stops(
    make_gateway: MakeGateway, shared_gateway: Gateway, large: Server
) -> None:
    urls = {pool: (url,) for pool, url in shared_gateway.stack.config.backend_urls.items()}
    policy = {
        "pools": {"large": {"partial_by": "guard"}},
        "response": {"deadline": f"{DEADLINE_S:g}s"},
    }
    guarded = make_gateway(backends=urls, policy=policy)
    generated = large.metric("vllm:generation_tokens_total")
    chunks = list(
        guarded.client().chat.completions.create(
            **STORY, stream=True, stream_options={"include_usage": True}
        )
    )
    *_, last, usage = chunks
    assert last.choices[0].finish_reason == "length"
    assert last.model_extra == {"forebay": {"incomplete": True, "reason": "deadline"}}
    large.wait_until_idle()
    by_server = large.metric("vllm:generation_tokens_total") - generated
    assert usage.usage
    # The engine works on until Envoy has closed its stream.
    assert 0 <= by_server - usage.usage.completion_tokens < 20
