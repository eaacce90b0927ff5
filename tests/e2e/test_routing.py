"""How hard a request is, pins, and a sample to learn from: through real Envoy, and over reloads."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner

from extproc.cli import app
from extproc.learning.outcomes import read
from tests.e2e.client import Answer, Gateway, chat
from tests.e2e.test_operation import put_back, reloads, rewrite
from tests.gateways import MakeGateway
from tests.unit.test_difficulty import model

SECRET = "SECRET-a94c"
REQUESTS = 400
TENANTS = {"default": {}, "acme": {"pin": "large"}}
FREE = {"authorization": "Bearer sk-demo-nightly"}  # not pinned


@pytest.fixture(scope="module")
def shared_routing(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(policy={"tenants": TENANTS})


@pytest.fixture
def routing(shared_routing: Gateway) -> Iterator[Gateway]:
    yield from put_back(shared_routing)


def policy_of(gateway: Gateway) -> dict[str, Any]:
    document = yaml.safe_load((gateway.stack.folder / "envoy.yaml").read_text())
    return document["node"]["metadata"]["forebay"]


async def change(gateway: Gateway, **keys: Any) -> None:
    """Of the block `routing`, until it is taken."""
    taken = reloads(gateway, "taken")
    rewrite(gateway, routing=policy_of(gateway)["routing"] | keys)
    await gateway.until_async(lambda: reloads(gateway, "taken") > taken, "not taken")


async def tenants(gateway: Gateway, policies: dict[str, Any]) -> None:
    taken = reloads(gateway, "taken")
    rewrite(gateway, tenants=policies)
    await gateway.until_async(lambda: reloads(gateway, "taken") > taken, "not taken")


def status(gateway: Gateway) -> dict[str, Any]:
    return json.loads(gateway.get(f"{gateway.stack.config.admin_url}/status"))["routing"]


def route_of(answer: Answer) -> tuple[str, str]:
    assert answer.status == 200, answer
    pool, _, reason = answer.headers["x-forebay-route"].partition("; reason=")
    return pool, reason


def texts(count: int) -> list[str]:
    kinds = ("Tell me a story about {}.", "What is {0} * 17 + {0}?", "Write Python for {}.", "{}?")
    return [kinds[number % 4].format(number) for number in range(count)]


async def test_the_promised_share_goes_large_also_over_a_reload(routing: Gateway) -> None:
    await change(routing, difficulty={"policy": "prior", "share": 0.3})
    told = list[tuple[str, str]]()
    for at in range(0, REQUESTS, 20):
        if at == REQUESTS // 2:
            await change(routing, fallback={})
        asked = [
            routing.ask(chat(text, max_tokens=1), headers=FREE)
            for text in texts(REQUESTS)[at : at + 20]
        ]
        told += map(route_of, await asyncio.gather(*asked))
    assert set(told) == {("large", "prior-hard"), ("small", "prior-easy")}
    large = sum(pool == "large" for pool, _ in told)
    # ShareKeeper's bound for so few is 13 points; mostly it is much closer.
    assert abs(large / REQUESTS - 0.3) < 0.05
    counted = routing.metric('forebay_routes_total{pool="large",reason="prior-hard"}')
    assert counted == large


async def test_a_pin_wins_and_a_named_model_wins_over_it(routing: Gateway) -> None:
    assert route_of(await routing.ask(chat("Hi?", max_tokens=1))) == ("large", "pin")
    named = chat("Hi?", max_tokens=1) | {"model": "small-7b"}
    assert route_of(await routing.ask(named)) == ("small", "client-model")
    free = await routing.ask(chat("Hi?", max_tokens=1), headers=FREE)
    assert route_of(free) == ("small", "short-question")
    in_a_hurry = {"x-latency-budget-ms": "10"}
    pinned = await routing.ask(chat("Hi?", max_tokens=1), headers=in_a_hurry)
    assert route_of(pinned) == ("large", "pin")


async def test_a_model_that_was_learned_comes_into_force_and_a_bad_one_does_not(
    routing: Gateway, tmp_path: Path
) -> None:
    file = tmp_path / "router.json"
    file.write_text(json.dumps(model()))
    assert status(routing)["in_force"] == "rules"
    await change(routing, difficulty={"policy": "learned", "model_file": str(file)})
    assert status(routing)["in_force"] == "learned"
    assert routing.metric('forebay_difficulty_in_force{policy="learned"}') == 1
    answer = await routing.ask(chat(max_tokens=1), headers=FREE)
    assert route_of(answer)[1].startswith("learned-")
    refused = reloads(routing, "refused")
    evidence = model()["evidence"] | {"more_than_prior": {"low": -0.1, "value": 0, "high": 0.1}}
    file.write_text(json.dumps(model(evidence=evidence)))
    await routing.until_async(lambda: reloads(routing, "refused") > refused, "not refused")
    assert status(routing)["in_force"] == "learned"
    log = routing.stack.folder / "processor.log"
    why = f"{file}: evidence: it did not beat prior and length on later traffic"
    await routing.until_async(lambda: why in log.read_text(), "not logged")


class Judge:
    """Finds large's answers good enough, and of small's every second one: it cannot tell them
    apart, so it says so in turn."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.got.append(await request.json())
        word = '{"A": "yes", "B": "%s"}' % ("yes" if len(self.got) % 2 else "no")
        message = {"role": "assistant", "content": word}
        return web.json_response(
            {
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 50, "completion_tokens": 9},
            }
        )


@asynccontextmanager
async def judging() -> AsyncIterator[tuple[Judge, str, web.AppRunner]]:
    judge, application = Judge(), web.Application()
    application.router.add_post("/v1/chat/completions", judge.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield judge, f"http://127.0.0.1:{runner.addresses[0][1]}", runner
    finally:
        await runner.cleanup()


def sampled(gateway: Gateway, outcome: str) -> float:
    return gateway.metric(f'forebay_learning_samples_total{{outcome="{outcome}"}}')


async def test_a_sample_is_answered_by_both_judged_and_written_and_without_a_judge_nobody_notices(
    routing: Gateway, tmp_path: Path
) -> None:
    file = tmp_path / "outcomes.jsonl"
    async with judging() as (judge, url, runner):
        price = {"input": 1, "output": 4}
        learning = {
            "share": 1.0,
            "file": str(file),
            "judge": {"url": url, "model": "judge", "price": price},
        }
        await change(routing, learning=learning)
        for number in range(6):
            more = {"stream": True} if number % 2 else {}
            body = chat(f"Is it {SECRET}-{number}?", max_tokens=3, **more)
            assert (await routing.ask(body, headers=FREE)).status == 200
            await routing.until_async(
                lambda done=number + 1: sampled(routing, "recorded") == done, "not recorded"
            )
        # Not sampled: pinned, and by its name.
        assert (await routing.ask(chat(max_tokens=1))).status == 200
        named = chat(max_tokens=1) | {"model": "small-7b"}
        assert (await routing.ask(named, headers=FREE)).status == 200
        # Nor what its tenant does not want to be.
        await tenants(routing, TENANTS | {"nightly": {"learning": False}})
        assert (await routing.ask(chat(max_tokens=1), headers=FREE)).status == 200
        await tenants(routing, TENANTS)
        assert (len(judge.got), len(read(file))) == (6, 6)
        assert routing.metric("forebay_learning_usd_total") > 6 * (50 + 4 * 9) / 1e6
        for pool in ("small", "large"):
            bodies = [json.loads(one["body"]) for one in routing.received(pool)]
            plain = [b for b in bodies if b.get("stream") is False]
            assert len(plain) == 6
            assert {b["max_tokens"] for b in plain} == {3}

        told = CliRunner().invoke(app, ["train-router", str(file)])
        assert "6 requests are too few to learn from; 800 is the least" in told.output
        assert SECRET not in file.read_text()
        assert SECRET not in (routing.stack.folder / "processor.log").read_text()

        await runner.cleanup()  # the judge is gone
        answers = await asyncio.gather(
            *(routing.ask(chat(max_tokens=1), headers=FREE) for _ in range(3))
        )
        assert [answer.status for answer in answers] == [200] * 3
        await routing.until_async(lambda: sampled(routing, "judge_failed") == 3, "not counted")
        assert (await routing.ask(chat(max_tokens=1), headers=FREE)).status == 200
        assert sampled(routing, "resting") == 1
        routing.wait_until_idle()
        assert len(read(file)) == 6
