"""`when_spent: stop` through real Envoy: a tenant's running answers end well-formed and exactly
billed once its money is gone, and nobody else's do."""

import asyncio
from typing import Any

import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway
from tests.redis_server import RedisServer

NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}
PRICE = {"input": 0, "cached_input": 0, "output": 100_000}  # $0.10 for each token of an answer
USD = 130.0
LONG: dict[str, Any] = {"max_tokens": 4000}  # 20 s; estimated as 256 tokens, $25.60
STOPPED = 'forebay_stopped_total{{pool="{}",reason="budget"}}'.format


def policy(**more: Any) -> dict[str, Any]:
    return {
        "pools": {"small": {"price": PRICE}, "large": {"price": PRICE, "server": "other"}},
        "routing": {"fallback": {}},
        "response": {"grace": "1s"},
        "tenants": {
            "acme": {
                "concurrent_requests": 9,
                "budget": {"usd": USD, "per": "month", "soft": 1, "when_spent": "stop"},
            },
            "nightly": {},
        },
        **more,
    }


def tokens_of(answer: Answer) -> int:
    usage = answer.events[-1]["usage"] if answer.body.startswith(b"data:") else answer.json["usage"]
    return usage["completion_tokens"]


def spent(gateway: Gateway) -> float:
    return gateway.metric('forebay_budget_spent_usd{tenant="acme"}')


async def running(gateway: Gateway, pool: str, count: int) -> None:
    await gateway.until_async(lambda: gateway.running(pool) == count, "they do not run")


async def test_what_runs_is_ended_when_the_money_is_gone_and_billed_as_far_as_it_went(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(policy=policy())
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    asked = [
        chat("A stream", **LONG, **usage),
        chat("JSON", **LONG),
        chat("Guarded", model="large-70b", **LONG, **usage),
        chat("Cannot be ended early", model="large-70b", max_tokens=900),
    ]
    mine = [asyncio.create_task(gateway.ask(body)) for body in asked]
    other = asyncio.create_task(gateway.ask(chat("Another's", max_tokens=900), headers=NIGHTLY))
    await running(gateway, "small", 3)
    await running(gateway, "large", 2)
    assert spent(gateway) == pytest.approx(4 * 25.6)
    last = await gateway.ask(chat("It goes past the mark", max_tokens=540))  # $54
    assert last.status == 200
    stream, as_json, guarded, whole = await asyncio.gather(*mine)

    assert stream.events[-2]["choices"][0]["finish_reason"] == "abort"
    assert as_json.json["choices"][0]["finish_reason"] == "abort"
    *_, end, _ = guarded.events
    assert end["forebay"] == {"incomplete": True, "reason": "budget"}
    assert end["choices"][0]["finish_reason"] == "length"
    assert whole.json["usage"]["completion_tokens"] == 900, "it could only have been cut"
    assert (await other).json["usage"]["completion_tokens"] == 900
    assert [gateway.metric(STOPPED(pool)) for pool in ("small", "large")] == [2, 1]

    gateway.wait_until_accounted()
    counted = [tokens_of(answer) for answer in (stream, as_json, last, whole)]
    assert all(100 < tokens < 4000 for tokens in counted)
    estimated = tokens_of(guarded)  # the client is told the same as the books
    assert spent(gateway) == pytest.approx((sum(counted) + estimated) * 0.1)
    refused = await gateway.ask(chat())
    assert (refused.status, refused.code) == (429, "budget_exceeded")
    status = gateway._json(f"{gateway.stack.config.admin_url}/status")  # pyright: ignore
    assert status["limits"]["tenants"]["acme"]["running_here"] == 0
    assert gateway.metric("forebay_asked_to_stop_total") == 0, "which tells of deadlines"
    assert gateway.metric('forebay_endings_total{ending="whole"') == 6


async def test_what_another_processor_spent_ends_what_runs_here(
    make_gateway: MakeGateway, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("secrets") / "secret"
    secret.write_text("of all processors that share\n")
    shared = policy(
        cache={"secret_file": str(secret)}, limits={"store": {"redis": {"url": redis.url}}}
    )
    here, there = make_gateway(policy=shared), make_gateway(policy=shared)
    mine = asyncio.create_task(here.ask(chat(**LONG)))
    await running(here, "small", 1)
    past_the_mark = await there.ask(chat(max_tokens=1200))
    assert past_the_mark.status == 200
    stopped = await mine
    assert stopped.json["choices"][0]["finish_reason"] == "abort"
    for gateway in (here, there):
        gateway.wait_until_accounted()
    total = (tokens_of(stopped) + tokens_of(past_the_mark)) * 0.1
    await here.until_async(lambda: spent(here) == pytest.approx(total), "the books differ")
    assert (await here.ask(chat())).code == "budget_exceeded"
