"""Names of models on their way: aliases, what each tier's servers are told, what the client is."""

import json

import pytest

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    def edit(document: dict) -> None:
        policy = document["node"]["metadata"]["forebay"]
        policy["routing"]["aliases"] = {"gpt-4o": "large", "default": "auto"}
        policy["tenants"] = {"default": {}, "nightly": {"pools": ["small"]}}

    return make_gateway(edit=edit)


async def test_an_alias_is_another_name_for_a_pool(gateway: Gateway) -> None:
    answer = await gateway.ask(chat(model="gpt-4o", max_tokens=1))
    assert answer.headers["x-forebay-route"] == "large; reason=client-model"
    assert answer.json["model"] == answer.headers["x-forebay-model"] == "large-70b"
    (request,) = gateway.received("large")
    assert json.loads(request["body"])["model"] == "large-70b"


async def test_an_alias_for_auto_leaves_the_choice_to_the_rules(gateway: Gateway) -> None:
    answer = await gateway.ask(chat("Is it?", model="default", max_tokens=1))
    assert answer.headers["x-forebay-route"] == "small; reason=short-question"


def test_models_lists_aliases(gateway: Gateway) -> None:
    names = [model.id for model in gateway.client().models.list()]
    assert names == ["auto", "small-7b", "large-70b", "gpt-4o", "default"]
    mine = gateway.client(api_key="sk-demo-nightly").models.list()
    assert [model.id for model in mine] == ["auto", "small-7b", "default"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_model_is_that_of_the_last_try(gateway: Gateway, stream: bool) -> None:
    gateway.set_faults("small", {"status": 503})
    answer = await gateway.ask(chat(model="small-7b", stream=stream, max_tokens=2))
    assert answer.headers["x-forebay-served-by"] == "large"
    assert answer.headers["x-forebay-model"] == "large-70b"
    said = answer.events[0] if stream else answer.json
    assert said["model"] == "large-70b"


async def test_a_cached_answer_says_whose_it_was(gateway: Gateway) -> None:
    asked = chat("Compare", model="gpt-4o", temperature=0, max_tokens=2)
    for stream in (False, True):
        first = await gateway.ask(asked | {"seed": int(stream)})
        hit = await gateway.ask(asked | {"seed": int(stream), "stream": stream})
        assert first.headers["x-forebay-model"] == "large-70b"
        assert hit.headers["x-forebay-route"] == "cache; reason=exact"
        assert hit.headers["x-forebay-model"] == "large-70b"
        assert (hit.events[0] if stream else hit.json)["model"] == "large-70b"


async def test_only_the_name_changes_at_each_tier(gateway: Gateway) -> None:
    gateway.set_faults("small", {"status": 503})
    sent = (
        b'{"x":{"model":"small-7b"},"n":1,"model" :"sm\\u0061ll-7b", "messages":[{"role":"user",'
        b'"content":"\\u0048 \\"model\\":\\"auto\\" \\\\"}], "seed":12345678901234567890,'
        b' "max_tokens":1}'
    )
    answer = await gateway.ask(sent)
    assert answer.status == 200
    small, _ = gateway.received("small")
    (large,) = gateway.received("large")
    assert small["body"] == sent
    assert large["body"] == sent.replace(b'"sm\\u0061ll-7b"', b'"large-70b"')


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_clients_priority_salt_and_id_do_not_reach_a_server(
    gateway: Gateway, path: str
) -> None:
    prompt = (
        b'"prompt":"Hi"'
        if path == "/v1/completions"
        else b'"messages":[{"role":"user","content":"Hi"}]'
    )
    sent = (
        b'{"priority":-9, "request\\u005fid": "x" ,"model":"auto","cache_salt":"mine",'
        b'"stream":true,'
        + prompt
        + b',"x":{"priority":1},"max_tokens":1, "request_id2":{"a":[1,"]"]}}'
    )
    answer = await gateway.ask(sent, path=path)
    assert answer.status == 200, answer
    (request,) = gateway.received("small")
    body = json.loads(request["body"])
    salt = body.pop("cache_salt")
    assert len(salt) == 64
    expected = json.loads(sent) | {"model": "small-7b", "stream_options": {"include_usage": True}}
    for name in ("priority", "request_id", "cache_salt"):
        del expected[name]
    assert body == expected
