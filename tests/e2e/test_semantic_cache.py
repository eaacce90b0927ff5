"""The semantic cache through real Envoy, with the real gate and the real MiniLM."""

import json
from typing import Any

import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway

NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}


def semantic(**more: Any) -> dict[str, Any]:
    return {"scope": "tenant", "check_first": 0, "check_share": 0.001, **more}


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    made = make_gateway(
        policy={
            "cache": {"semantic": semantic(embedder={"time_limit": "2s"})},
            "tenants": {"acme": {}, "nightly": {}},
        }
    )
    made.until(
        lambda: b'"state":"ready"' in made.get(f"{made.stack.config.admin_url}/cache"),
        "the embedder does not get ready",
        limit_s=30,
    )
    return made


def cold(text: str, **more: Any) -> dict[str, Any]:
    return chat(text, model="small-7b", temperature=0, max_tokens=4, **more)


def said(answer: Answer) -> str:
    return answer.json["choices"][0]["message"]["content"]


def status(answer: Answer) -> str:
    return answer.headers["cache-status"]


async def test_a_question_in_other_words_gets_the_stored_answer(gateway: Gateway) -> None:
    first = await gateway.ask(cold("What is the capital of France?"))
    again = await gateway.ask(cold("Could you please tell me the capital of France?"))
    stream = await gateway.ask(cold("what's the capital of France", stream=True))
    assert status(first) == "forebay; fwd=uri-miss"
    assert status(again).startswith("forebay; hit; ttl=3")
    assert 'detail="semantic; similarity=0.' in status(again)
    assert again.headers["age"] == "0"
    assert again.headers["x-forebay-route"] == "cache; reason=semantic"
    assert said(again) == said(first)
    assert "semantic; similarity" in status(stream)
    assert len(gateway.received("small")) == 1
    assert gateway.metric('forebay_cache_requests_total{result="semantic_hit"') == 2


@pytest.mark.parametrize(
    "other",
    [
        "What is the capital of Germany?",
        "What was the capital of France in 1940?",
        "What is the largest city of France?",
        "What is not the capital of France?",
    ],
)
async def test_another_question_reaches_the_model(gateway: Gateway, other: str) -> None:
    await gateway.ask(cold("What is the capital of France?"))
    answer = await gateway.ask(cold(other))
    assert status(answer) == "forebay; fwd=uri-miss"
    assert answer.status == 200


async def test_what_depends_on_the_moment_is_never_shared(gateway: Gateway) -> None:
    for text in ("What did I just order?", "What have I just ordered?"):
        assert status(await gateway.ask(cold(text))) == "forebay; fwd=uri-miss"
    assert gateway.metric('forebay_semantic_lookups_total{outcome="stateful"') == 2


async def test_another_tenant_is_never_given_it(gateway: Gateway) -> None:
    await gateway.ask(cold("How do I bake sourdough bread?"))
    other = await gateway.ask(cold("How can I bake sourdough bread?"), headers=NIGHTLY)
    mine = await gateway.ask(cold("How can I bake sourdough bread?"))
    assert status(other) == "forebay; fwd=uri-miss"
    assert "semantic" in status(mine)


async def test_the_first_hits_are_answered_by_the_model_and_compared(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(
        policy={
            "cache": {"semantic": semantic(check_first=20, embedder={"time_limit": "2s"})},
            "tenants": {"acme": {}, "nightly": {}},
        }
    )
    url = f"{gateway.stack.config.admin_url}/cache"
    gateway.until(lambda: b'"state":"ready"' in gateway.get(url), "no embedder", limit_s=30)
    await gateway.ask(cold("What is the capital of France?"))
    checked = await gateway.ask(cold("Please tell me the capital of France."))
    assert status(checked) == 'forebay; fwd=uri-miss; detail="semantic; checked"'
    assert len(gateway.received("small")) == 2
    gateway.until(
        lambda: json.loads(gateway.get(url))["semantic"]["budget"]["checked"] == 1, "no check"
    )
