"""Output caps through real Envoy: what the server is asked for, what is said of it, and what it is
said to have saved."""

import json
from typing import Any

import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway

NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """acme gets ten tokens. The large pool's JSON answers could only be cut at their deadline."""
    return make_gateway(
        policy={
            "pools": {"large": {"server": "other"}},
            "routing": {"fallback": {}},
            "response": {"deadline": "1500ms", "grace": "500ms", "cap_to_deadline": True},
            "cache": {"exact": {"scope": "public"}},
            "tenants": {"acme": {"max_output_tokens": 10}, "nightly": {}},
        },
    )


def reason(answer: Answer) -> str:
    return answer.headers["x-forebay-route"]


def limits(gateway: Gateway, pool: str) -> list[int | None]:
    bodies: list[Any] = [json.loads(request["body"]) for request in gateway.received(pool)]
    return [body.get("max_tokens") for body in bodies]


async def test_a_tenants_cap_reaches_the_server_and_is_said_where_it_binds(
    gateway: Gateway,
) -> None:
    open_end = await gateway.ask(chat())
    long = await gateway.ask(chat(max_tokens=50, stream=True))
    short = await gateway.ask(chat(max_tokens=4))
    other = await gateway.ask(chat(max_tokens=50), headers=NIGHTLY)
    assert limits(gateway, "small") == [10, 10, 4, 50]
    assert open_end.json["usage"]["completion_tokens"] == 10
    assert open_end.json["choices"][0]["finish_reason"] == "length"
    assert long.events[-1]["choices"][0]["finish_reason"] == "length"
    assert {reason(open_end), reason(long)} == {"small; reason=default; capped=tenant"}
    assert {reason(short), reason(other)} == {"small; reason=default"}
    assert gateway.metric('forebay_capped_total{by="tenant",pool="small"}') >= 2


async def test_a_capped_answer_is_nobody_elses_and_is_given_again_to_its_tenant(
    gateway: Gateway,
) -> None:
    asked = chat("Tell me of caps", temperature=0)
    capped, again = await gateway.ask(asked), await gateway.ask(asked)
    other = await gateway.ask(asked, headers=NIGHTLY)
    assert [a.json["usage"]["completion_tokens"] for a in (capped, again, other)] == [10, 10, 64]
    assert again.headers["cache-status"].startswith("forebay; hit")
    assert other.headers["cache-status"] == "forebay; fwd=uri-miss"
    assert (await gateway.ask(asked)).json["usage"]["completion_tokens"] == 10


async def test_the_costs_say_what_a_cap_saved(gateway: Gateway) -> None:
    for number in range(3):
        await gateway.ask(chat(f"Free {number}"), headers=NIGHTLY)  # 64 tokens
    before = output_cap(gateway)
    await gateway.ask(chat("Capped"))
    assert output_cap(gateway) - before == pytest.approx(54 * 0.4e-6)


def output_cap(gateway: Gateway) -> float:
    gateway.wait_until_accounted()
    costs = json.loads(gateway.get(f"{gateway.stack.config.admin_url}/costs"))
    return sum(saving["usd"] for saving in costs["savings"] if saving["lever"] == "output_cap")


async def test_what_would_be_cut_at_its_deadline_ends_by_length_instead(gateway: Gateway) -> None:
    async def ask(**more: Any) -> Answer:
        return await gateway.ask(chat(**({"model": "large-70b"} | more)), headers=NIGHTLY)

    unknown = await ask(max_tokens=3000)  # 15 s
    assert (unknown.status, unknown.code) == (504, "upstream_timeout")
    for _ in range(3):
        assert (await ask(max_tokens=64)).status == 200
    gateway.wait_until_accounted()
    saved = output_cap(gateway)
    capped = await ask(max_tokens=3000, temperature=0)
    assert capped.status == 200
    assert capped.json["choices"][0]["finish_reason"] == "length"
    assert 60 < capped.json["usage"]["completion_tokens"] < 300
    assert reason(capped) == "large; reason=client-model; capped=deadline"
    assert limits(gateway, "large")[-1] == capped.json["usage"]["completion_tokens"]
    assert output_cap(gateway) == saved, "it would have been cut about there"
    again = await ask(max_tokens=3000, temperature=0)
    assert again.headers["cache-status"] == "forebay; fwd=uri-miss", "it was cut by us"
    # What ends in time by itself, or can be ended well, is left alone.
    stream = await ask(max_tokens=3000, stream=True)
    by_asking = await ask(model="small-7b", max_tokens=3000)
    assert limits(gateway, "large")[-1] == limits(gateway, "small")[-1] == 3000
    assert stream.events[-1]["forebay"] == {"incomplete": True, "reason": "deadline"}
    assert by_asking.json["choices"][0]["finish_reason"] == "abort"
    whole = [await ask(max_tokens=30, temperature=0) for _ in range(2)]
    assert reason(whole[0]) == "large; reason=client-model"
    assert whole[1].headers["cache-status"].startswith("forebay; hit")
