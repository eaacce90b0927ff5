"""`on_overload: overflow`: what a pool sheds goes to the pools that are for it alone."""

import asyncio
from typing import Any

import pytest

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway

SLOW = chat(model="small-7b", max_tokens=200)  # a second


def edit(on_overload: list[str], **large: Any) -> Any:
    def change(document: dict) -> None:
        policy = document["node"]["metadata"]["forebay"]
        policy["pools"]["small"]["slots"] = 1
        policy["pools"]["large"] |= {"overflow_only": True, "slots": 1, **large}
        policy["routing"] = {"small": "small", "large": "small", "fallback": {"small": ["large"]}}
        policy["admission"] = {"high_water": 0, "on_overload": on_overload}
        policy["tenants"] = {"default": {}, "nightly": {"pools": ["small"]}}

    return change


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(edit=edit(["overflow", "shed"]))


async def full(gateway: Gateway, pool: str = "small") -> "asyncio.Task[Any]":
    """Its one slot is taken for a second."""
    model = {"small": "small-7b", "large": "large-70b"}[pool]
    task = asyncio.create_task(gateway.ask(SLOW | {"model": model}))
    await gateway.until_async(lambda: gateway.status(pool)["in_flight"] == 1, "no slot was taken")
    return task


async def test_what_the_pool_sheds_is_served_and_priced_there(gateway: Gateway) -> None:
    slow = await full(gateway)
    answer = await gateway.ask(chat(max_tokens=1))
    assert answer.status == 200
    assert answer.headers["x-forebay-route"] == "large; reason=only-choice; degraded=overflow"
    assert answer.headers["x-forebay-served-by"] == "large"
    assert answer.headers["x-forebay-model"] == answer.json["model"] == "large-70b"
    assert gateway.metric('forebay_degraded_total{pool="large",way="overflow"') >= 1
    assert (await slow).headers["x-forebay-served-by"] == "small"
    gateway.wait_until_accounted()
    assert gateway.metric('forebay_answers_total{pool="large",status="200"') >= 1


@pytest.mark.parametrize(
    ("why", "more", "key"),
    [
        ("the client chose the model", {"model": "small-7b"}, "acme"),
        ("the tenant may not use it", {}, "nightly"),
    ],
)
async def test_it_is_not_for_everybody(
    gateway: Gateway, why: str, more: dict[str, Any], key: str
) -> None:
    slow = await full(gateway)
    headers = {"authorization": f"Bearer sk-demo-{key}"}
    answer = await gateway.ask(chat(max_tokens=1, **more), headers=headers)
    assert (answer.status, answer.code) == (429, "overloaded"), why
    await slow


async def test_its_own_slots_are_the_limit(gateway: Gateway) -> None:
    slow = [await full(gateway), await full(gateway, "large")]
    answer = await gateway.ask(chat(max_tokens=1))
    assert (answer.status, answer.code) == (429, "overloaded")
    await asyncio.gather(*slow)


async def test_without_the_word_nothing_overflows(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(edit=edit(["cached", "smaller", "shed"]))
    slow = await full(gateway)
    answer = await gateway.ask(chat(max_tokens=1))
    assert (answer.status, answer.code) == (429, "overloaded")
    await slow


async def test_a_prompt_that_does_not_fit_there_does_not_overflow(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(edit=edit(["overflow", "shed"], context=100))
    slow = await full(gateway)
    answer = await gateway.ask(chat("word " * 200, max_tokens=1))
    assert (answer.status, answer.code) == (429, "overloaded")
    await slow
