"""Vectors of a real vLLM through the gateway: its own, counted and priced by its own counters."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.client import Gateway
from tests.e2e.test_embeddings import with_embedder
from tests.gateways import MakeGateway
from tests.vllm.servers import Server

PRICE_USD = 7.0
INPUTS: list[Any] = [
    "How do I boil an egg?",
    ["The capital of France", "is", "Paris, as everybody knows."],
    [101, 2129, 2079, 102],
    [[101, 7592, 102], [101, 2129, 2079, 1045, 102]],
    ["one more"] * 40,  # more than there are slots
]


def alone(document: Any) -> None:
    """The embedder as the only pool."""
    with_embedder(document)
    policy = document["node"]["metadata"]["forebay"]
    pool = {"serves": "embeddings", "model": "minilm", "slots": 8, "price": {"input": PRICE_USD}}
    policy["pools"] = {"embed": pool}
    policy["routing"] = {"auto_model": "auto"}


@pytest.fixture
def gateway(embedder: Server, make_gateway: MakeGateway) -> Iterator[Gateway]:
    made = make_gateway(edit=alone, backends={"embed": (embedder.url,)})
    yield made
    made.wait_until_idle()
    embedder.wait_until_idle()


def test_vectors_usage_and_cost_are_the_servers_own(gateway: Gateway, embedder: Server) -> None:
    counted = embedder.metric("vllm:prompt_tokens_total")
    generated = embedder.metric("vllm:generation_tokens_total")
    told = 0
    answers = []
    for given in INPUTS:
        answer = gateway.client().embeddings.create(model="auto", input=given)
        answers.append(answer)
        told += answer.usage.prompt_tokens
    counted = embedder.metric("vllm:prompt_tokens_total") - counted
    generated = embedder.metric("vllm:generation_tokens_total") - generated

    gateway.wait_until_accounted()
    (cost,) = json.loads(gateway.get(f"{gateway.stack.config.admin_url}/costs"))["costs"]
    print(f"vLLM counted {counted:g}, its usage said {told}, billed {cost['tokens']}")
    assert cost["tokens"] == {"input": told, "cached_input": 0, "output": 0}
    assert told == counted
    assert cost["usd"] == pytest.approx(told * PRICE_USD / 1e6)
    assert (cost["requests"], cost["uncounted"]) == (len(INPUTS), 0)
    assert gateway.metric('forebay_endings_total{ending="whole"') == len(INPUTS)
    assert gateway.metric('forebay_tokens_total{kind="completion"') == generated == 0

    for given, answer in zip(INPUTS, answers, strict=True):
        straight = embedder.client().embeddings.create(model="minilm", input=given)
        assert len(answer.data) == len(straight.data)
        for one, other in zip(answer.data, straight.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding, abs=1e-5)
        assert answer.usage.prompt_tokens == straight.usage.prompt_tokens


def test_what_the_server_refuses_is_told_and_costs_nothing(gateway: Gateway) -> None:
    with pytest.raises(openai.BadRequestError):
        gateway.client().embeddings.create(model="auto", input="word " * 5000)
    gateway.wait_until_accounted()
    (cost,) = json.loads(gateway.get(f"{gateway.stack.config.admin_url}/costs"))["costs"]
    assert (cost["usd"], cost["uncounted"], cost["tokens"]["input"]) == (0, 0, 0)
