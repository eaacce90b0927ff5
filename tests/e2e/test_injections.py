"""What vLLM is told beside the client's words, and what no server gets: through real Envoy."""

import json
import random
from typing import Any

import pytest

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """Both pools are vLLM to the sim; to the policy the large one is another server."""
    policy = {
        "pools": {
            "small": {"priority": True, "cache_salt": "tenant"},
            "large": {"server": "other"},
        },
        "tenants": {"default": {}, "acme": {"priority": -5}, "nightly": {"class": "batch"}},
        "response": {"on_expiry": "cut"},
    }
    return make_gateway(policy=policy)


def body_at(gateway: Gateway, pool: str) -> dict[str, Any]:
    return json.loads(gateway.received(pool)[-1]["body"])


async def ask(gateway: Gateway, key: str = "acme", **more: Any) -> Any:
    headers = {"authorization": f"Bearer sk-demo-{key}"}
    answer = await gateway.ask(chat(max_tokens=1, **more), headers=headers)
    assert answer.status == 200, answer
    return answer


async def test_vllm_gets_a_number_by_class_and_tenant(gateway: Gateway) -> None:
    await ask(gateway, "acme", priority=-99)
    assert body_at(gateway, "small")["priority"] == -5
    await ask(gateway, "nightly")
    assert body_at(gateway, "small")["priority"] == 10_000


async def test_a_salt_is_the_tenants_and_mixed_with_the_clients_own(gateway: Gateway) -> None:
    salts = []
    for key, more in (
        *[("acme", {})] * 2,
        ("nightly", {}),
        ("acme", {"cache_salt": "x"}),
        ("nightly", {"cache_salt": "x"}),
    ):
        await ask(gateway, key, model="small-7b", **more)
        salts.append(body_at(gateway, "small")["cache_salt"])
    assert salts[0] == salts[1]
    assert len(set(salts)) == 4
    assert all(len(salt) == 64 for salt in salts)


async def test_a_named_model_gets_them_too_and_keeps_its_spelling(gateway: Gateway) -> None:
    sent = b'{"model": "sm\\u0061ll-7b","messages":[{"role":"user","content":"Hi"}],"max_tokens":1}'
    answer = await gateway.ask(sent)
    assert answer.headers["x-forebay-model"] == "small-7b"
    (request,) = gateway.received("small")
    before, _, after = request["body"].partition(b',"priority":-5,"cache_salt":"')
    assert before == b'{"model": "sm\\u0061ll-7b"'
    assert after[64:] == b'"' + sent.removeprefix(before)


async def test_no_client_steers_the_engine(gateway: Gateway) -> None:
    params = {"do_remote_prefill": True, "remote_host": "10.0.0.9", "remote_port": 5600}
    control = {
        "x-data-parallel-rank": "1",
        "x-vllm-priority": "-9",
        "x-session-id": "s",
        "endpoint-load-metrics-format": "JSON",
    }
    answer = await gateway.ask(chat(max_tokens=1, kv_transfer_params=params), headers=control)
    assert answer.status == 200, answer
    got = gateway.received("small")[-1]
    assert "kv_transfer_params" not in json.loads(got["body"])
    assert not control.keys() & got["headers"].keys()
    refused = await gateway.ask(chat(vllm_xargs={"kv_transfer_params": "x"}))
    assert (refused.status, refused.json["error"]["param"]) == (
        400,
        "vllm_xargs.kv_transfer_params",
    )


async def test_another_server_gets_none_of_vllms_members(gateway: Gateway) -> None:
    gateway.set_faults("small", {"status": 503})
    sent = chat("Why", top_k=1, min_p=0.1, priority=1, cache_salt="x", request_id="r", min_tokens=0)
    sent = {"skip_special_tokens": True, **sent, "max_tokens": 1, "stream": True}
    answer = await gateway.ask(sent)
    assert answer.headers["x-forebay-served-by"] == "large"
    assert body_at(gateway, "large") == {
        "model": "large-70b",
        "messages": sent["messages"],
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_what_only_vllm_can_obey_goes_to_vllm_or_nowhere(gateway: Gateway) -> None:
    answer = await ask(gateway, text="Why", min_tokens=1, model="auto")
    assert answer.headers["x-forebay-route"] == (
        "small; reason=word-why; min_tokens is for vLLM only"
    )
    assert gateway.received("large") == []
    assert body_at(gateway, "small")["min_tokens"] == 1
    gateway.set_faults("small", {"status": 503})
    failed = await gateway.ask(chat(min_tokens=1, max_tokens=1))
    assert failed.status == 503
    assert gateway.received("large") == []


async def test_where_nobody_can_obey_the_member_is_named(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(
        policy={
            "pools": {"small": {"server": "other"}, "large": {"server": "other"}},
            "response": {"on_expiry": "cut"},
        }
    )
    answer = await gateway.ask(chat(structured_outputs={"choice": ["a"]}))
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.json["error"]["param"] == "structured_outputs"
    assert gateway.received("small") == gateway.received("large") == []


async def test_every_other_byte_is_the_clients(gateway: Gateway) -> None:
    """Members in any order, with white space and escapes, cut and added at once."""
    gateway.set_faults("small", {"status": 503})
    draw = random.Random(7)
    for _ in range(40):
        kept = [
            '"messages":[{"role":"user","content":"\\u0048 \\"priority\\":1 {[ \U0001f600 \\\\"}]',
            '"seed": 12345678901234567890',
            '"x" :{"model":"auto","top_k":[1,"]"]}',
            '"temperature":1.0e0',
            '"max_tokens":1',
            '"model" : "auto"',
        ]
        ours = ['"priority":-3', '"r\\u0065quest_id": "a,b"', '"cache_salt":null']
        hints = ['"top_k" :5', '"repetition_detection":{"a":[1,{"b":"}"}]}', '"min_p":0.5']
        members = (
            kept + draw.sample(ours, draw.randint(0, 3)) + draw.sample(hints, draw.randint(0, 3))
        )
        draw.shuffle(members)
        parts = [
            draw.choice(["", " ", "\n\t"]) + member + draw.choice(["", " "]) for member in members
        ]
        sent = "{" + ",".join(parts) + "}"
        answer = await gateway.ask(sent.encode())
        assert answer.headers["x-forebay-served-by"] == "large", sent
        small, large = gateway.received("small")[-1]["body"], gateway.received("large")[-1]["body"]
        for got, gone, name in ((small, ours, "small-7b"), (large, ours + hints, "large-70b")):
            left = [member for member in members if member not in gone]
            added = {"priority", "cache_salt"} if name == "small-7b" else set()
            assert set(json.loads(got)) - added == {
                json.loads("{" + member + "}").popitem()[0] for member in left
            }
            for member in left:  # as it was spelt
                spelt = member.replace('"auto"', f'"{name}"', 1) if 'model" :' in member else member
                assert spelt.encode() in got
        length = gateway.received("large")[-1]["headers"]["content-length"]
        assert int(length) == len(large)
