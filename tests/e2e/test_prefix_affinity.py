"""Prompts that begin alike go to one replica of a real ring hash, within its bound of load, and to
the other one while that is dead."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.client import Gateway
from tests.e2e.replicas import Replica, replicas
from tests.gateways import MakeGateway

BALANCE = 1.5
CONVERSATIONS, TURNS = 32, 5
HEADER = "x-forebay-prefix"


def lb(policy: str) -> Any:
    def edit(document: Any) -> None:
        cluster = next(c for c in document["static_resources"]["clusters"] if c["name"] == "small")
        cluster["lb_policy"] = policy
        if policy == "RING_HASH":
            factor = {"hash_balance_factor": round(BALANCE * 100)}
            cluster["common_lb_config"] = {"consistent_hashing_lb_config": factor}

    return edit


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Replica]]:
    with replicas("small-7b", ("--decode-ms", "5", "--prefill-ms", "20")) as two:
        yield two


@pytest.fixture(scope="module")
def hosted() -> Iterator[list[Replica]]:
    with replicas("gpt-x", ("--decode-ms", "5"), count=1) as one:
        yield one


@pytest.fixture(scope="module")
def make(make_gateway: MakeGateway, pair: list[Replica], hosted: list[Replica]) -> Any:
    def make(policy: str, affinity: bool) -> Gateway:
        return make_gateway(
            policy={
                "pools": {"large": {"server": "other"}},
                "routing": {
                    "prefix_affinity": affinity,
                    "fallback": {"small": ["small", "large"]},
                },
            },
            edit=lb(policy),
            backends={
                "small": tuple(one.url for one in pair),
                "large": tuple(one.url for one in hosted),
            },
        )

    return make


@pytest.fixture(scope="module")
def ring(make: Any) -> Gateway:
    return make("RING_HASH", True)


@pytest.fixture(autouse=True)
def _remember_nothing(pair: list[Replica], hosted: list[Replica]) -> None:
    for one in (*pair, *hosted):
        one.forget()


def turn(conversation: str, number: int, **more: Any) -> dict[str, Any]:
    """The whole conversation until then: some 80 tokens a turn."""
    messages: list[Any] = [{"role": "user", "content": f"{conversation}: " + "tell me " * 30}]
    for n in range(number):
        messages.append({"role": "assistant", "content": f"I told you {n}."})
        messages.append({"role": "user", "content": f"{conversation} goes on, {n}. " * 12})
    return {"model": "small-7b", "max_tokens": 3, "messages": messages, **more}


async def talk(gateway: Gateway, conversation: str, turns: int = TURNS) -> None:
    for number in range(turns):
        answer = await gateway.ask(turn(conversation, number))
        assert answer.status == 200, answer


@contextmanager
def counted(pair: list[Replica]) -> Iterator[dict[str, float]]:
    """What the replicas' own prefix caches counted in the block, and how even they were used."""

    def now() -> tuple[float, float]:
        kinds = ("queries", "hits")
        queries, hits = (
            sum(one.counted(f"vllm:prefix_cache_{kind}_total") for one in pair) for kind in kinds
        )
        return queries, hits

    before = now()
    told: dict[str, float] = {}
    yield told
    after = now()
    served = [len(one.received()) for one in pair]
    told["hit_rate"] = (after[1] - before[1]) / (after[0] - before[0])
    told["balance"] = max(served) / (sum(served) / len(served))


async def test_a_conversation_finds_its_past_more_often_than_by_round_robin_as_evenly(
    make: Any, ring: Gateway, pair: list[Replica]
) -> None:
    even = make("ROUND_ROBIN", False)
    told: dict[str, dict[str, float]] = {}
    for name, gateway in (("round robin", even), ("affinity", ring)):
        for one in pair:
            one.forget()
        with counted(pair) as told[name]:
            await asyncio.gather(*(talk(gateway, f"{name} {n}") for n in range(CONVERSATIONS)))
        print(name, {key: round(value, 3) for key, value in told[name].items()})
    assert told["affinity"]["hit_rate"] > told["round robin"]["hit_rate"] + 0.1
    assert told["affinity"]["balance"] <= BALANCE


async def test_the_turns_of_a_conversation_stay_together(
    ring: Gateway, pair: list[Replica]
) -> None:
    for n in range(6):
        await talk(ring, f"together {n}")
        assert sorted(len(one.received()) for one in pair) == [0, TURNS]
        for one in pair:
            one.forget()


async def test_a_long_system_prompt_is_shared_whatever_is_asked(
    ring: Gateway, pair: list[Replica]
) -> None:
    for n in range(4):
        system = {"role": "system", "content": f"You are librarian {n}. " * 60}
        for question in range(5):
            asked = turn(f"question {question}", 0)
            asked["messages"].insert(0, system)
            assert (await ring.ask(asked)).status == 200
        assert sorted(len(one.received()) for one in pair) == [0, 5]
        for one in pair:
            one.forget()


async def test_what_everybody_asks_is_spread_by_the_bound(
    ring: Gateway, pair: list[Replica]
) -> None:
    asked, under_way = 40, []
    for _ in range(asked):
        body = turn("everybody", 0, max_tokens=400)
        under_way.append(asyncio.create_task(ring.ask(body)))
        # Envoy counts a request once it has a connection: of a burst more would pass.
        await asyncio.sleep(0.02)
    answers = await asyncio.gather(*under_way)
    assert {answer.status for answer in answers} == {200}
    served = sorted(len(one.received()) for one in pair)
    # Envoy rounds the bound up and looks at it before it counts the request itself.
    assert served[1] <= asked / 2 * BALANCE + 2, served
    assert served[1] > asked / 2, "the one that has the prompt gets more"


async def test_a_dead_replicas_prefixes_go_to_the_other_and_come_back(
    ring: Gateway, pair: list[Replica]
) -> None:
    names = [f"moved {n}" for n in range(12)]
    home: dict[str, int] = {}
    for name in names:
        await talk(ring, name, turns=1)
        [home[name]] = [n for n, one in enumerate(pair) if one.received()]
        for one in pair:
            one.forget()
    dead = home[names[0]]
    pair[dead].end()
    try:
        for name in names:
            answer = await ring.ask(turn(name, 1))
            assert answer.status == 200
            assert answer.headers["x-forebay-served-by"] == "small", answer.headers
            tries = answer.headers["x-envoy-attempt-count"]
            assert tries == ("2" if home[name] == dead else "1")
        assert len(pair[1 - dead].received()) == len(names)
    finally:
        pair[dead].start()
        pair[dead].wait_until_ready()
    pair[1 - dead].forget()
    for name in names:
        assert (await ring.ask(turn(name, 2))).status == 200
    mine = sum(home[name] == dead for name in names)
    assert len(pair[dead].received()) == mine > 0


async def test_a_client_cannot_say_the_hash(ring: Gateway, pair: list[Replica]) -> None:
    told: set[str] = set()
    for n in range(8):
        forged = {HEADER: f"{n:016x}"}
        assert (await ring.ask(turn("forged", 0), headers=forged)).status == 200
    for one in pair:
        told |= {request["headers"][HEADER] for request in one.received()}
    assert len(told) == 1
    assert not told & {f"{n:016x}" for n in range(8)}


async def test_it_is_not_for_other_servers(
    ring: Gateway, hosted: list[Replica], pair: list[Replica]
) -> None:
    assert (await ring.ask({**turn("other", 0), "model": "gpt-x"})).status == 200
    assert (await ring.ask(turn("other", 0))).status == 200
    (there,) = hosted[0].received()
    assert not [name for name in there["headers"] if "forebay" in name]
    (here,) = [request for one in pair for request in one.received()]
    assert HEADER in here["headers"]


async def test_off_it_says_nothing(make: Any, pair: list[Replica]) -> None:
    gateway = make("ROUND_ROBIN", False)
    assert (await gateway.ask(turn("off", 0), headers={HEADER: "0" * 16})).status == 200
    (request,) = [request for one in pair for request in one.received()]
    assert HEADER not in request["headers"]
