"""Two replicas of real vLLM behind a ring hash: their own prefix caches say what it is worth."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Gateway
from tests.e2e.test_prefix_affinity import BALANCE, lb
from tests.gateways import MakeGateway
from tests.vllm.servers import MAX_NUM_SEQS, Fleet, Server

CONVERSATIONS, TURNS = 32, 4


@pytest.fixture(scope="module")
def twins(fleet: Fleet) -> Iterator[list[Server]]:
    two = fleet.living("twin-1", "twin-2")
    yield two
    for one in two:
        one.end()


def ask(name: str, conversation: int, number: int) -> dict[str, Any]:
    """A system prompt of its own for every fourth conversation, and the whole past."""
    system = f"{name} {conversation % 4}: you are a careful librarian. " * 6
    messages: list[Any] = [{"role": "system", "content": system}]
    for n in range(number + 1):
        text = f"Question {n} of {name} {conversation}: " + "which book is it, and by whom? " * 8
        messages.append({"role": "user", "content": text})
        if n < number:
            messages.append({"role": "assistant", "content": f"Answer {n} " * 4})
    return {"model": "twin", "messages": messages, "max_tokens": 4, "temperature": 1}


async def talk(gateway: Gateway, name: str, conversation: int) -> None:
    for number in range(TURNS):
        answer = await gateway.ask(ask(name, conversation, number), timeout_s=120)
        assert answer.status == 200, answer


def sums(twins: list[Server], metric: str) -> list[float]:
    return [twin.metric(f"vllm:{metric}_total") for twin in twins]


def measured(gateway: Gateway, name: str, twins: list[Server]) -> dict[str, float]:
    async def all_of_them() -> None:
        await asyncio.gather(*(talk(gateway, name, n) for n in range(CONVERSATIONS)))

    kinds = ("prefix_cache_queries", "prefix_cache_hits", "request_success")
    before = {kind: sums(twins, kind) for kind in kinds}
    asyncio.run(all_of_them())
    grown = {
        kind: [now - then for now, then in zip(sums(twins, kind), before[kind], strict=True)]
        for kind in kinds
    }
    served = grown["request_success"]
    assert sum(served) == CONVERSATIONS * TURNS
    rate = sum(grown["prefix_cache_hits"]) / sum(grown["prefix_cache_queries"])
    return {"hit_rate": rate, "balance": max(served) / (sum(served) / len(served))}


def test_more_of_each_prompt_is_in_the_cache_at_equal_balance(
    twins: list[Server], make_gateway: MakeGateway
) -> None:
    def made(policy: str, affinity: bool) -> Gateway:
        return make_gateway(
            policy={
                "pools": {pool: {"slots": MAX_NUM_SEQS} for pool in ("small", "large")},
                "admission": {"high_water": 64},
                "routing": {"prefix_affinity": affinity},
            },
            edit=lb(policy),
            backends={
                "small": tuple(twin.url for twin in twins),
                "large": (twins[0].url,),  # nothing is asked of it
            },
        )

    even = measured(made("ROUND_ROBIN", False), "even", twins)
    affine = measured(made("RING_HASH", True), "affine", twins)
    for name, told in (("round robin", even), ("affinity", affine)):
        print(
            f"{name}: {told['hit_rate']:.3f} of all prompt tokens were in a prefix cache, ", end=""
        )
        print(f"the busier replica had {told['balance']:.2f} times the mean")
    assert affine["hit_rate"] > even["hit_rate"] + 0.05
    assert affine["balance"] <= BALANCE
