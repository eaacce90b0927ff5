"""Costs and savings of a running gateway: a trace is replayed with one lever off, and costs more by
what that lever was said to save, within 5%."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from extproc.cli import app
from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway

TOLERANCE = 0.05

# Both pools answer alike: the length is the client's max_tokens, or this many.
NATURAL_TOKENS = 40
SIMS = ("--decode-ms", "1", "--prefill-ms", "1", "--max-tokens", str(NATURAL_TOKENS))
POLICY: dict[str, Any] = {
    "pools": {"small": {"slots": 1}},
    "admission": {
        "high_water": 64,
        "on_overload": ["cached", "smaller", "shorter", "shed"],
        "shorter_tokens": 10,
    },
    "features": ["search", "summary"],
    "tenants": {"acme": {}},
}

SYSTEM = {
    "role": "system",
    "content": "You are a careful librarian. " * 30,
}  # 222 tokens, as the simulator counts
SEARCH = {"x-feature": "search"}
BATCH = {"x-feature": "summary", "x-request-class": "batch"}

Ask = tuple[dict[str, Any], dict[str, str]]


def _asked(text: str, **more: Any) -> dict[str, Any]:
    return {**chat(**more), "messages": [SYSTEM, {"role": "user", "content": text}]}


# One after another, so that nobody queues: small and large by rule and by name, streamed and not,
# again and again, batch.
TRACE: list[Ask] = [
    *((_asked(f"Is {n} a prime?", max_tokens=30, stream=n % 2 == 0), SEARCH) for n in range(10)),
    *((_asked(f"Explain why {n} is odd.", max_tokens=50), SEARCH) for n in range(3)),
    *((_asked(f"Sum up {n}", max_tokens=30), BATCH) for n in range(6)),
    *((_asked(f"Tell me of {n}", max_tokens=30, model="small-7b"), {}) for n in range(3)),
    *((_asked(f"What is {n % 3}?", max_tokens=30, temperature=0), SEARCH) for n in range(9)),
]


@dataclass
class Told:
    usd: float
    saved: dict[str, float]


def report(gateway: Gateway) -> Any:
    gateway.wait_until_accounted()
    return json.loads(gateway.get(f"{gateway.stack.config.admin_url}/costs"))


async def replay(gateway: Gateway, *waves: list[Ask]) -> Told:
    """What it cost, and what was saved. All of a wave at once, one wave after another."""
    before = report(gateway)
    for wave in waves:
        answers = await asyncio.gather(*(gateway.ask(body, headers=more) for body, more in wave))
        assert [answer.status for answer in answers] == [200] * len(wave)
    after = report(gateway)
    saved = {saving["lever"]: saving["usd"] for saving in after["savings"]}
    for saving in before["savings"]:
        saved[saving["lever"]] -= saving["usd"]
    return Told(after["usd"] - before["usd"], saved)


async def replay_trace(gateway: Gateway) -> Told:
    """Both servers have the system prompt before it begins, wherever it will be needed."""
    for model in ("small-7b", "large-70b"):
        await gateway.ask(_asked("Warm up", model=model, max_tokens=1))
    return await replay(gateway, *([one] for one in TRACE))


def assert_worth(lever: str, on: Told, off: Told) -> None:
    claimed, shown = on.saved[lever], off.usd - on.usd
    assert claimed > 0
    assert lever not in off.saved
    print(f"{lever}: claimed {claimed:.3e} USD, the replay without it {shown:.3e} more")
    assert claimed == pytest.approx(shown, rel=TOLERANCE)


@pytest.fixture(scope="module")
def on(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(POLICY, sim_args={"small": SIMS, "large": SIMS})


@pytest.fixture(scope="module")
def told(on: Gateway) -> Told:
    """The trace with every lever on."""
    return asyncio.run(replay_trace(on))


def _stack(make: MakeGateway, off: dict[str, Any], *more: str) -> Gateway:
    sims = {"small": (*SIMS, *more), "large": (*SIMS, *more)}
    policy = {**POLICY, **off}
    return make(policy, sim_args=sims)


async def test_routing_saves_what_the_large_pool_would_have_cost(
    told: Told, make_gateway: MakeGateway
) -> None:
    all_large = _stack(make_gateway, {"routing": {"small": "large"}})
    assert_worth("routing", told, await replay_trace(all_large))


async def test_the_exact_cache_saves_what_the_answers_would_have_cost_again(
    told: Told, make_gateway: MakeGateway
) -> None:
    no_cache = _stack(make_gateway, {"cache": {"exact": None}})
    assert_worth("exact_hit", told, await replay_trace(no_cache))


async def test_the_prefix_cache_saves_what_its_tokens_would_have_cost_uncached(
    told: Told, make_gateway: MakeGateway
) -> None:
    """No prompt fills a block of this size: nothing is found again."""
    nothing_shared = _stack(make_gateway, {}, "--block-size", "4096")
    assert_worth("prefix_cache", told, await replay_trace(nothing_shared))


async def test_batch_and_output_caps_save_what_they_take_off(
    told: Told, on: Gateway, make_gateway: MakeGateway
) -> None:
    """Both off in one stack: nobody queues in the trace, and no request of the rush is batch."""
    policy = {
        "costs": {"batch_price": 1.0},
        "admission": {"high_water": 64, "on_overload": ["cached", "smaller", "shed"]},
    }
    off = _stack(make_gateway, policy)
    assert_worth("batch", told, await replay_trace(off))
    calm = [[(_asked(f"Calm {n}", model="small-7b"), SEARCH)] for n in range(3)]
    rush = [(_asked(f"Rush {n}", model="small-7b"), SEARCH) for n in range(8)]
    capped, free = await replay(on, *calm, rush), await replay(off, *calm, rush)
    assert_worth("output_cap", capped, free)


def test_costs_are_by_tenant_feature_model_and_pool(told: Told, on: Gateway) -> None:
    lines = {(c["tenant"], c["feature"], c["model"], c["pool"]): c for c in report(on)["costs"]}
    assert lines.keys() == {
        ("acme", "search", "small-7b", "small"),
        ("acme", "search", "large-70b", "large"),
        ("acme", "summary", "small-7b", "small"),
        ("acme", "other", "small-7b", "small"),
        ("acme", "other", "large-70b", "large"),
    }
    explained = lines["acme", "search", "large-70b", "large"]
    tokens = explained["tokens"]
    assert (explained["requests"], tokens["output"]) == (3, 150)
    assert tokens["cached_input"] == 3 * 224, "14 blocks each"
    usd = (tokens["input"] * 0.9 + tokens["cached_input"] * 0.2 + tokens["output"] * 3.6) / 1e6
    assert explained["usd"] == pytest.approx(usd)
    line = 'forebay_cost_usd_total{feature="search",pool="large",tenant="acme"}'
    assert on.metric(line) == pytest.approx(usd)


async def test_a_feature_that_the_policy_does_not_name_is_other(told: Told, on: Gateway) -> None:
    answer = await on.ask(chat("Hello", max_tokens=1), headers={"x-feature": "made-up"})
    assert answer.status == 200
    assert {cost["feature"] for cost in report(on)["costs"]} == {"search", "summary", "other"}
    received = on.received("small")[-1]
    assert "x-feature" not in {name.lower() for name in received["headers"]}


def test_the_command_shows_it(told: Told, on: Gateway) -> None:
    url = on.stack.config.admin_url
    shown = CliRunner().invoke(app, ["costs", "--from", url, "--tenant", "acme"])
    assert shown.exit_code == 0
    for word in ("summary", "large-70b", "routing", "prefix_cache", "exact_hit", "batch"):
        assert word in shown.stdout, shown.stdout
