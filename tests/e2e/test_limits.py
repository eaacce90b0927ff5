"""Limits per tenant as clients meet them: through real Envoy, with the official client."""

import re
from typing import Any

import pytest

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway

SIX = [
    f"x-ratelimit-{what}-{kind}"
    for kind in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
]
NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}
SHORT: dict[str, Any] = {"max_tokens": 4, "temperature": 1}


@pytest.fixture(scope="module")
def limited(make_gateway: MakeGateway) -> Gateway:
    """acme has few requests a minute and all limits; nightly has none."""
    acme = {"requests_per_minute": 120, "tokens_per_minute": 600_000, "burst": "2s"}
    acme |= {"concurrent_requests": 3}
    return make_gateway(policy={"tenants": {"acme": acme, "nightly": {}}})


async def test_an_answer_tells_what_is_left_and_a_refusal_when_there_is_more(
    limited: Gateway,
) -> None:
    first = await limited.ask(chat(**SHORT))
    assert first.status == 200
    assert [first.headers[name] for name in SIX[:2]] == ["120", "3"]
    assert re.fullmatch(r"\d+ms|[\d.]+s", first.headers[SIX[2]])
    assert first.headers[SIX[3]] == "600000"
    assert 0 < int(first.headers[SIX[4]]) < 20_000
    stream = await limited.ask(chat(stream=True, **SHORT))
    assert stream.headers[SIX[1]] in ("2", "3")
    for _ in range(6):
        last = await limited.ask(chat(**SHORT))
    assert (last.status, last.code) == (429, "rate_limit_exceeded")
    assert last.json["error"]["type"] == "requests"
    assert last.headers["retry-after"] == "1"
    assert [last.headers[name] for name in SIX[:2]] == ["120", "0"]


async def test_a_tenant_without_limits_gets_none_of_these_headers(limited: Gateway) -> None:
    for body in (chat(**SHORT), chat(stream=True, **SHORT), {"model": "no-such-model"}):
        answer = await limited.ask(body, headers=NIGHTLY)
        assert not [name for name in answer.headers if "ratelimit" in name]
