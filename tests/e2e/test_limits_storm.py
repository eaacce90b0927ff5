"""After any storm the books of the limits add up: no place is held, what was spent is what the
log counted. Clients leave at every step, bodies are wild, scripts are flushed, limits change."""

import asyncio
import json
import random
from contextlib import suppress
from typing import Any

import pytest
import redis as redis_client
import yaml

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway
from tests.redis_server import RedisServer

MOST_USD = 128 * 256 * 3.6e-6
"""That a request is estimated to cost here."""
ACME = {
    "requests_per_minute": 60_000,
    "tokens_per_minute": 60_000_000,
    "concurrent_requests": 24,
    "budget": {"usd": 100, "per": "month"},
}


@pytest.fixture(scope="module", params=["memory", "redis"])
def shared_gateway(
    request: pytest.FixtureRequest,
    make_gateway: MakeGateway,
    redis: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Gateway:
    secret = tmp_path_factory.mktemp("secrets") / "secret"
    secret.write_text("of all processors that share\n")
    store = "memory" if request.param == "memory" else {"redis": {"url": redis.url}}
    return make_gateway(
        policy={
            "pools": {"small": {"slots": 6}, "large": {"slots": 2, "server": "other"}},
            "admission": {
                "max_wait": "1s",
                "high_water": 20,
                "batch": {"max_wait": "5s", "when_needed": "stop", "spare": 0.2},
            },
            "response": {"deadline": "1500ms", "grace": "500ms", "cap_to_deadline": True},
            "cache": {"secret_file": str(secret), "exact": {"scope": "tenant"}},
            "limits": {"store": store},
            "tenants": {"acme": ACME, "nightly": {}},
        }
    )


def wild(draw: random.Random) -> bytes:
    """A request, or nearly one."""
    more: dict[str, Any] = {}
    for name, values in (
        ("max_tokens", (1, 8, 60, 150, 10**9, 10**30, -1, 0, 1.5, "9", None)),
        ("max_completion_tokens", (4, 40, None, 10**18)),
        ("min_tokens", (0, 3, 10**9, -4)),
        ("n", (1, 2, 8, 128, 129, 0, -1, None)),
        ("stream", (True, True, False, "yes", None)),
        ("temperature", (0, 0, 0.7, -1)),
        ("stream_options", ({"include_usage": True}, {}, None)),
    ):
        if draw.random() < 0.35:
            weighted = values[:3] if draw.random() < 0.8 else values
            more[name] = draw.choice(weighted)
    text = draw.choice(("Always the same", "", "x " * 3000, f"New {draw.random()}"))
    model = draw.choice(("auto", "auto", "small-7b", "large-70b", "none-such"))
    body = json.dumps(chat(text, **more) | {"model": model}).encode()
    return body if draw.random() < 0.95 else body[: draw.randrange(len(body))]


async def one(gateway: Gateway, draw: random.Random) -> None:
    """Asked, and left at some moment or not at all."""
    await asyncio.sleep(draw.random() * 3)
    body, leaves_after_s = wild(draw), draw.choice((None, None, 0.002, 0.01, 0.05, 0.3, 1.0))
    lines = [f"content-length: {len(body)}", "content-type: application/json"]
    if draw.random() < 0.4:
        lines.append("x-request-class: batch")
    lines += ["x-ratelimit-remaining-tokens: 99", "x-forebay-admit: json", "x-tenant-id: nightly"]
    async with gateway.raw() as (reader, writer):
        writer.write(gateway.head(*lines))
        if leaves_after_s == 0.002:
            body = body[: len(body) // 2]
        writer.write(body)
        with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(leaves_after_s or 9.0):
                head = await reader.readuntil(b"\r\n\r\n")
                if b"transfer-encoding: chunked" in head:
                    while b"\r\n0\r\n" not in await reader.read(65536):
                        if reader.at_eof():
                            break


def reconfigure(gateway: Gateway, tenant: dict[str, Any]) -> None:
    path = gateway.stack.folder / "envoy.yaml"
    document = yaml.safe_load(path.read_text())
    document["node"]["metadata"]["forebay"]["tenants"]["acme"] = tenant
    path.write_text(yaml.safe_dump(document, sort_keys=False))


async def test_the_books_add_up_after_a_storm(gateway: Gateway, redis: RedisServer) -> None:
    draw = random.Random(7)
    storm = [asyncio.create_task(one(gateway, draw)) for _ in range(250)]
    with redis_client.Redis.from_url(redis.url) as admin:
        for _ in range(3):
            await asyncio.sleep(0.6)
            await asyncio.to_thread(admin.script_flush)
        reconfigure(gateway, ACME | {"concurrent_requests": 3, "max_output_tokens": 50})
        await asyncio.gather(*storm)
        gateway.wait_until_idle()
        await nothing_is_held(gateway)
        await asyncio.sleep(2.0)  # Envoy's log comes twice a second
        cost = gateway.metric("forebay_cost_usd_total{")
        spent = gateway.metric('forebay_budget_spent_usd{tenant="acme"}')
        assert cost > 0.001
        # Where a client leaves as it is admitted Envoy may not have our word, and its log says
        # nothing of the request: its estimate stays charged.
        admitted = gateway.metric('forebay_decisions_total{decision="admitted"')
        untold = admitted - gateway.metric("forebay_answers_total")
        assert 0 <= untold <= 5
        rounding = 1e-9 * 250
        assert cost - rounding <= spent <= cost + rounding + untold * MOST_USD
        keys = [*admin.scan_iter("forebay:*")]
        assert not [key for key in keys if b"acme" in key]
        assert not [key for key in keys if key.endswith(b":leases") and admin.zcard(key)]
    lines = (gateway.stack.folder / "processor.log").read_text().splitlines()
    assert not [line for line in lines if '"level":"error"' in line]


async def nothing_is_held(gateway: Gateway) -> None:
    def running_here() -> int:
        status = json.loads(gateway.get(f"{gateway.stack.config.admin_url}/status"))
        return status["limits"]["tenants"]["acme"]["running_here"]

    await gateway.until_async(lambda: running_here() == 0, "a place is held")
