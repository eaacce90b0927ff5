"""`forebay doctor` on running gateways, each of whose pools is driven into a condition of its own:
it names that one and no other."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from extproc.cli import app
from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway

# Bounds of the histograms, so that nothing is unsure.
SLO = {"ttft": "250ms", "tpot": "50ms"}
MODELS = {"small": "small-7b", "large": "large-70b"}

_numbers = itertools.count()


async def _doctor(gateway: Gateway, *args: str) -> Result:
    asked = ["doctor", "--from", gateway.stack.config.admin_url, *args]
    return await asyncio.to_thread(CliRunner().invoke, app, asked)


async def _found(gateway: Gateway, *args: str) -> dict[str, set[tuple[str, str]]]:
    """By pool, what is out and why; after checking that exit status and notes fit."""
    done = await _doctor(gateway, "--json", *args)
    report = json.loads(done.stdout)
    assert not any(pool["notes"] for pool in report["pools"].values()), done.stdout
    found = {
        name: {(one["out"], one["cause"]) for one in pool["findings"]}
        for name, pool in report["pools"].items()
    }
    print(done.stdout)  # shown where a test fails
    assert done.exit_code == (1 if any(found.values()) else 0)
    return found


def _stream(pool: str, *, prompt_tokens: int, tokens: int) -> dict[str, Any]:
    """A request whose prompt is like none before."""
    text = f"{next(_numbers):<8}" + "word" * (prompt_tokens - 2)
    return chat(text, stream=True, max_tokens=tokens) | {"model": MODELS[pool]}


async def _client(gateway: Gateway, pool: str, prompt_tokens: int, tokens: int) -> None:
    """Asks again and again, until cancelled."""
    while True:
        body = _stream(pool, prompt_tokens=prompt_tokens, tokens=tokens)
        assert (await gateway.ask(body)).status == 200


@asynccontextmanager
async def _load(
    gateway: Gateway, pool: str, clients: int, *, prompt_tokens: int, tokens: int
) -> AsyncIterator[None]:
    """So many clients of a pool, until the block ends. A failed one fails the test."""
    tasks = [
        asyncio.create_task(_client(gateway, pool, prompt_tokens, tokens)) for _ in range(clients)
    ]
    try:
        yield
        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _policy(small_slots: int, large_slots: int) -> dict[str, Any]:
    return {
        "pools": {"small": {"slots": small_slots}, "large": {"slots": large_slots}},
        "admission": {"high_water": 64, "low_water": 32, "slo": SLO},
        "routing": {"fallback": {}},
    }


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """small: two slots, long enough a queue to be late. large: 300 ms for 1,000 prompt tokens."""
    return make_gateway(policy=_policy(2, 8), sim_args={"large": ("--prefill-ms", "300")})


async def test_it_is_silent_when_all_is_well(gateway: Gateway) -> None:
    async with (
        _load(gateway, "small", 2, prompt_tokens=20, tokens=10),
        _load(gateway, "large", 2, prompt_tokens=20, tokens=10),
    ):
        done = await _doctor(gateway, "--watch", "2s")
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 1, done.output
    assert done.stdout.startswith("all is well in 2."), done.output
    assert "p99 TTFT" in done.stdout
    assert "SLO 250 ms" in done.stdout
    assert "SLO 50 ms" in done.stdout


async def test_a_long_queue_and_long_prompts(gateway: Gateway) -> None:
    async with (
        _load(gateway, "small", 20, prompt_tokens=20, tokens=20),
        _load(gateway, "large", 1, prompt_tokens=1000, tokens=2),
    ):
        await asyncio.sleep(1)
        found = await _found(gateway, "--watch", "8s")
    assert found == {"small": {("ttft", "long queue")}, "large": {("ttft", "long prompts")}}


@pytest.fixture(scope="module")
def other_gateway(make_gateway: MakeGateway) -> Gateway:
    """small: each answer makes a step 8 ms longer. large: a KV cache for three answers."""
    return make_gateway(
        policy=_policy(16, 16),
        sim_args={
            "small": ("--decode-ms", "20", "--decode-ms-per-seq", "8"),
            "large": ("--max-model-len", "400", "--num-kv-blocks", "75"),
        },
    )


async def test_too_large_a_batch_and_a_full_kv_cache(other_gateway: Gateway) -> None:
    gateway = other_gateway
    alone = await gateway.ask(_stream("small", prompt_tokens=20, tokens=30))
    assert alone.status == 200
    gateway.wait_until_accounted()
    few = await _doctor(gateway, "--since-start", "--pool", "small")
    assert few.exit_code == 0
    assert few.stdout.startswith("too few streamed answers since the start to judge"), few.output
    async with (
        _load(gateway, "small", 8, prompt_tokens=20, tokens=10),
        _load(gateway, "large", 12, prompt_tokens=100, tokens=200),
    ):
        await asyncio.sleep(1)
        found = await _found(gateway, "--watch", "6s")
    assert found == {"small": {("tpot", "batch too large")}, "large": {("ttft", "KV cache full")}}
    assert gateway.metric("forebay_ttft_seconds_count") > 0


async def test_what_is_plainly_wrong(gateway: Gateway) -> None:
    config = gateway.stack.folder / "envoy.yaml"
    good = config.read_text()
    gateway.stack.kill("large")
    try:
        config.write_text("[]")
        await gateway.until_async(
            lambda: (
                gateway.status("large")["replicas_up"] == 0
                and gateway.metric("forebay_config_last_reload_successful") == 0
            ),
            "not seen",
        )
        gateway.set_faults("small", {"status": 404})
        answer = await gateway.ask(_stream("small", prompt_tokens=20, tokens=1))
        assert (answer.status, answer.code) == (502, "upstream_refused")
        gateway.wait_until_accounted()
        done = await _doctor(gateway, "--since-start", "--json")
    finally:
        config.write_text(good)
        gateway.stack.respawn("large")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert {(one["pool"], one["trouble"]) for one in report["troubles"]} == {
        (None, "the config file was refused"),
        ("small", "its servers refuse tries"),
        ("large", "no replica answers"),
    }
    assert "--server" not in done.stdout
    await gateway.until_async(
        lambda: (
            gateway.status("large")["replicas_up"] == 1
            and gateway.metric("forebay_config_last_reload_successful") == 1
        ),
        "not taken back",
    )
    gateway.set_faults("small", {})
    assert (await gateway.ask(_stream("small", prompt_tokens=20, tokens=1))).status == 200
    gateway.wait_until_accounted()
    mended = await _doctor(gateway, "--watch", "100ms", "--json")
    assert mended.exit_code == 0, mended.output
    assert "earlier tries and none in this time" in mended.stdout
