"""Limits per tenant as clients meet them: through real Envoy, with the official client."""

import asyncio
import json
import re
import time
from typing import Any

import openai
import pytest

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway
from tests.redis_server import RedisServer

SIX = [
    f"x-ratelimit-{what}-{kind}"
    for kind in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
]
NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}
SHORT: dict[str, Any] = {"max_tokens": 4, "temperature": 1}
FEW = {"requests_per_minute": 60, "tokens_per_minute": 150_000, "burst": "4s"}
FEW |= {"concurrent_requests": 3}
"""4 requests at once."""


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """acme has limits, nightly has none; both answer from the cache."""
    return make_gateway(
        policy={"tenants": {"acme": FEW | {"concurrent_requests": 3}, "nightly": {}}}
    )


@pytest.fixture
def full(gateway: Gateway) -> Gateway:
    """The same when acme's buckets are full again."""
    time.sleep(4.0)
    return gateway


def limits_of(gateway: Gateway) -> dict[str, Any]:
    return json.loads(gateway.get(f"{gateway.stack.config.admin_url}/status"))["limits"]


async def test_an_answer_tells_what_is_left_and_a_refusal_when_there_is_more(
    full: Gateway,
) -> None:
    first = await full.ask(chat(**SHORT))
    assert first.status == 200
    assert [first.headers[name] for name in SIX[:2]] == ["60", "3"]
    assert re.fullmatch(r"\d+ms|[\d.]+s", first.headers[SIX[2]])
    assert first.headers[SIX[3]] == "150000"
    assert 9_900 < int(first.headers[SIX[4]]) < 10_000
    stream = await full.ask(chat(stream=True, **SHORT))
    assert stream.headers[SIX[1]] in ("2", "3")
    last = (await full.ask_many(6, chat(**SHORT)))[-1]
    assert (last.status, last.code) == (429, "rate_limit_exceeded")
    assert last.json["error"]["type"] == "requests"
    assert last.headers["retry-after"] == "1"
    assert [last.headers[name] for name in SIX[:2]] == ["60", "0"]
    assert full.metric('forebay_limited_total{limit="requests",tenant="acme"}') > 0


async def test_a_tenant_without_limits_gets_none_of_these_headers(gateway: Gateway) -> None:
    for body in (chat(**SHORT), chat(stream=True, **SHORT), {"model": "no-such-model"}):
        answer = await gateway.ask(body, headers=NIGHTLY)
        assert not [name for name in answer.headers if "ratelimit" in name]


def test_the_official_client_waits_as_it_is_told_and_is_then_answered(full: Gateway) -> None:
    with full.client(max_retries=0) as client:
        for _ in range(8):
            try:
                client.chat.completions.create(**chat(**SHORT))
            except openai.RateLimitError as error:
                assert error.code == "rate_limit_exceeded"
                assert error.type == "requests"
                break
        else:
            raise AssertionError("nothing was refused")
        began = time.monotonic()
        answer = client.with_options(max_retries=2).chat.completions.with_raw_response.create(
            **chat(**SHORT)
        )
        assert 0.9 < time.monotonic() - began < 3
        assert answer.retries_taken == 1
        assert answer.headers["x-ratelimit-limit-requests"] == "60"


async def test_a_cached_answer_takes_no_tokens(full: Gateway) -> None:
    cold = chat("Always the same", temperature=0, max_tokens=4)
    await full.ask(cold)
    full.wait_until_accounted()
    left = limits_of(full)["tenants"]["acme"]
    again = await full.ask(cold)
    assert again.headers["cache-status"].startswith("forebay; hit")
    assert int(again.headers["x-ratelimit-remaining-requests"]) <= 3
    after = limits_of(full)["tenants"]["acme"]
    assert after["tokens_left"] >= left["tokens_left"]
    await full.until_async(
        lambda: limits_of(full)["tenants"]["acme"]["running_here"] == 0, "it keeps its place"
    )


async def test_a_client_that_leaves_frees_its_place_at_once(full: Gateway) -> None:
    full.set_faults("small", {"stall_after": 1})
    slow = [asyncio.create_task(full.ask(chat(stream=True))) for _ in range(3)]
    await full.until_async(
        lambda: limits_of(full)["tenants"]["acme"]["running_here"] == 3, "not all run"
    )
    refused = await full.ask(chat(**SHORT))
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert full.metric('forebay_limited_total{limit="concurrent",tenant="acme"}') > 0
    slow[0].cancel()
    await full.until_async(
        lambda: limits_of(full)["tenants"]["acme"]["running_here"] == 2, "it keeps its place"
    )
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


@pytest.fixture(scope="module")
def paying(make_gateway: MakeGateway) -> Gateway:
    """Each token of an answer costs $0.10, and of a prompt nothing."""
    price = {"input": 0, "cached_input": 0, "output": 100_000}
    budget = {"usd": 2.5, "per": "month", "soft": 0.7}
    return make_gateway(
        policy={
            "pools": {"small": {"price": price}, "large": {"price": price}},
            "tenants": {"acme": {"budget": budget}, "nightly": {"budget": {"usd": 50}}},
        }
    )


async def test_a_budget_pays_what_the_server_counted_not_what_was_estimated(
    paying: Gateway,
) -> None:
    spent = 'forebay_budget_spent_usd{tenant="nightly"}'
    answer = await paying.ask(chat(), headers=NIGHTLY)
    estimated = paying.metric(spent)
    paying.wait_until_accounted()
    counted = answer.json["usage"]["completion_tokens"] * 0.1
    assert paying.metric(spent) == pytest.approx(counted)
    assert estimated in (pytest.approx(25.6), pytest.approx(counted))


def test_a_budget_goes_small_and_then_ends_and_no_client_tries_again(paying: Gateway) -> None:
    hard = chat("Compare the two and explain it in detail.", **SHORT)
    with paying.client(max_retries=2) as client:
        routes: list[str] = []
        for _ in range(20):
            try:
                answer = client.chat.completions.with_raw_response.create(**hard)
            except openai.RateLimitError as error:
                refusal = error
                break
            routes.append(answer.headers["x-forebay-route"])
            paying.wait_until_accounted()
        else:
            raise AssertionError("the budget never ends")
    assert len(routes) == 6  # of $0.40 each
    assert routes[0] == "large; reason=word-compare"
    assert routes[-1] == "small; reason=budget"
    assert refusal.code == "budget_exceeded"
    assert refusal.response.headers["x-should-retry"] == "false"
    assert "retry-after" not in refusal.response.headers
    assert re.search(r"A new one begins \d{4}-\d\d-01T00:00:00Z\.", str(refusal))
    assert paying.metric('forebay_limited_total{limit="budget",tenant="acme"}') == 1, "it retried"
    assert paying.metric('forebay_budget_spent_usd{tenant="acme"}') == pytest.approx(2.4)
    assert paying.metric('forebay_budget_usd{tenant="acme"}') == 2.5


async def test_tenants_that_are_not_named_have_limits_of_their_own(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(policy={"tenants": {"default": {"requests_per_minute": 1}}})
    assert (await gateway.ask(chat(**SHORT))).status == 200
    assert (await gateway.ask(chat(**SHORT))).status == 429
    assert (await gateway.ask(chat(**SHORT), headers=NIGHTLY)).status == 200
    text = gateway.get(f"{gateway.stack.config.admin_url}/metrics").decode()
    assert "acme" not in text
    assert limits_of(gateway)["tenants"] == {}


# --- several processors, one Redis ----------------------------------------------------------------


async def test_a_killed_processor_frees_its_places_when_its_leases_end(
    make_gateway: MakeGateway, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("secrets") / "secret"
    secret.write_text("of all processors that share\n")
    policy: dict[str, Any] = {
        "cache": {"secret_file": str(secret)},
        "response": {"deadline": "2s", "grace": "500ms"},
        "limits": {"store": {"redis": {"url": redis.url}}},
        "tenants": {"acme": {"concurrent_requests": 2}},
    }
    one, other = make_gateway(policy=policy), make_gateway(policy=policy)
    one.set_faults("small", {"stall_after": 1})
    slow = [asyncio.create_task(one.ask(chat(stream=True))) for _ in range(2)]
    began = time.monotonic()
    await one.until_async(lambda: one.status("small")["in_flight"] == 2, "they do not run")
    assert (await other.ask(chat(**SHORT))).status == 429
    one.stack.kill("processor")
    while (await other.ask(chat(**SHORT))).status != 200:
        assert time.monotonic() < began + 8, "its places are not free"
        await asyncio.sleep(0.1)
    assert 2.5 < time.monotonic() - began < 6
    await asyncio.gather(*slow, return_exceptions=True)
    assert other.metric("forebay_limits_store_up") == 1
