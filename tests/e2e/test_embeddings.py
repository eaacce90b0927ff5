"""/v1/embeddings through real Envoy: admitted and billed like the rest, by its own usage."""

import asyncio
import copy
from typing import Any

import pytest

from serving.vectors import DIMENSIONS, vector
from tests.e2e.client import Gateway
from tests.gateways import MakeGateway

EMBEDDINGS = "/v1/embeddings"
MODEL = "embed-s"
PRICE_USD = 3.0


def with_embedder(document: Any) -> None:
    """A third pool in the reference config: its cluster, its tier."""
    resources = document["static_resources"]
    like = next(c for c in resources["clusters"] if c["name"] == "large")
    mine = copy.deepcopy(like)
    mine["name"] = mine["load_assignment"]["cluster_name"] = "embed"
    options = mine["typed_extension_protocol_options"]
    [filters] = [one["http_filters"] for one in options.values()]
    [mutation] = filters[0]["typed_config"]["mutations"]["request_mutations"]
    mutation["append"]["header"]["value"] = "embed"
    resources["clusters"].append(mine)
    chain = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    for route in chain["route_config"]["virtual_hosts"][0]["routes"]:
        if plugin := route.get("route", {}).get("inline_cluster_specifier_plugin"):
            groups = plugin["extension"]["typed_config"]["priority_groups"]
            if not any(group["name"] == "embed" for group in groups):  # an anchor: one list
                groups.append(
                    {"name": "embed", "clusters": [{"cluster_name": "embed", "weight": 1}]}
                )


def policy(**more: Any) -> dict[str, Any]:
    pool = {"model": MODEL, "serves": "embeddings", "slots": 4, "price": {"input": PRICE_USD}}
    return {
        "pools": {"embed": {**pool, **more}},
        "response": {"paths": {EMBEDDINGS: {"deadline": "2s"}}},
    }


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(policy=policy(), edit=with_embedder)


def test_the_official_client_gets_the_vectors_in_its_default_encoding(gateway: Gateway) -> None:
    answer = gateway.client().embeddings.create(model=MODEL, input=["one", "two"])
    assert [item.index for item in answer.data] == [0, 1]
    for item, text in zip(answer.data, (b"one", b"two"), strict=True):
        filled = text.decode().ljust(4, "\0")
        assert item.embedding == pytest.approx(vector(filled), abs=1e-6)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (2, 2)


def test_lists_of_texts_and_of_token_ids_are_one_vector_each(gateway: Gateway) -> None:
    client = gateway.client()
    for given, count in (
        ("a text", 1),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        (["a"] * 40, 40),  # more than the pool has slots
    ):
        answer = client.embeddings.create(model=MODEL, input=given, encoding_format="float")
        assert len(answer.data) == count
        assert all(len(item.embedding) == DIMENSIONS for item in answer.data)


def test_auto_is_the_embedder_and_the_server_is_told_its_own_name(gateway: Gateway) -> None:
    answer = gateway.client().embeddings.with_raw_response.create(model="auto", input="a text")
    assert answer.headers["x-forebay-route"] == "embed; reason=embeddings"
    assert answer.headers["x-forebay-served-by"] == "embed"
    assert "cache-status" not in answer.headers
    (request,) = gateway.received("embed")
    assert (request["path"], f'"model":"{MODEL}"' in request["body"].decode()) == (EMBEDDINGS, True)
    assert gateway.received("small") == gateway.received("large") == []


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (EMBEDDINGS, {"model": "small-7b", "input": "x"}, 400, "model_not_served_here", "model"),
        (EMBEDDINGS, {"model": "none", "input": "x"}, 404, "model_not_found", "model"),
        (EMBEDDINGS, {"model": MODEL}, 400, "invalid_request", "input"),
        (EMBEDDINGS, {"model": MODEL, "input": []}, 400, "invalid_request", "input"),
        (EMBEDDINGS, {"model": MODEL, "input": ["x"] * 2049}, 400, "invalid_request", "input"),
        (
            EMBEDDINGS,
            {"model": MODEL, "input": "x", "encoding_format": "bytes"},
            400,
            "invalid_request",
            "encoding_format",
        ),
        (
            "/v1/chat/completions",
            {"model": MODEL, "messages": [{"role": "user", "content": "x"}]},
            400,
            "model_not_served_here",
            "model",
        ),
        ("/v1/completions", {"model": MODEL, "prompt": "x"}, 400, "model_not_served_here", "model"),
    ],
)
async def test_what_no_pool_can_answer_reaches_none(
    gateway: Gateway, path: str, body: Any, status: int, code: str, param: str
) -> None:
    answer = await gateway.ask(body, path=path)
    assert (answer.status, answer.code) == (status, code)
    assert answer.json["error"]["param"] == param
    assert not any(gateway.received(pool) for pool in ("small", "large", "embed"))


def test_models_lists_the_embedder_too(gateway: Gateway) -> None:
    assert [model.id for model in gateway.client().models.list()] == [
        "auto",
        "small-7b",
        "large-70b",
        MODEL,
    ]


def test_its_tokens_are_counted_priced_by_input_and_whole(gateway: Gateway) -> None:
    before = _told(gateway)
    for text in ("four" * 25, ["four" * 10, "four" * 15]):
        gateway.client().embeddings.create(model=MODEL, input=text)
    after = _told(gateway)
    grown = {name: after[name] - before[name] for name in after}
    assert grown == {
        "prompt": 50,
        "completion": 0,
        "estimated": 0,
        "whole": 2,
        "other_endings": 0,
        "ttft": 0,
        "tpot": 0,
        "uncounted": 0,
        "usd": pytest.approx(50 * PRICE_USD / 1e6),
    }


def _told(gateway: Gateway) -> dict[str, float]:
    gateway.wait_until_accounted()
    costs = gateway._json(f"{gateway.stack.config.admin_url}/costs")["costs"]
    mine = [line for line in costs if line["pool"] == "embed"]
    tokens = 'forebay_tokens_total{kind="'
    whole = gateway.metric('forebay_endings_total{ending="whole",pool="embed"')
    endings = [
        gateway.metric(f'forebay_endings_total{{ending="{how}",pool="embed"')
        for how in ("error", "reset", "cut", "client_left")
    ]
    return {
        "prompt": gateway.metric(f'{tokens}prompt",pool="embed"'),
        "completion": gateway.metric(f'{tokens}completion",pool="embed"'),
        "estimated": gateway.metric(f'{tokens}prompt_estimated",pool="embed"'),
        "whole": whole,
        "other_endings": sum(endings),
        "ttft": gateway.metric('forebay_ttft_seconds_count{pool="embed"'),
        "tpot": gateway.metric('forebay_tpot_seconds_count{pool="embed"'),
        "uncounted": sum(line["uncounted"] for line in mine),
        "usd": sum(line["usd"] for line in mine),
    }


async def test_it_takes_a_slot_for_each_input_and_waits_like_the_rest(gateway: Gateway) -> None:
    gateway.set_faults("embed", {"latency_ms": 500})
    body = {"model": MODEL, "input": ["a", "b", "c"]}
    asked = [asyncio.create_task(gateway.ask(body, path=EMBEDDINGS)) for _ in range(2)]
    await gateway.until_async(
        lambda: (
            (gateway.status("embed")["in_flight"], gateway.status("embed")["queue_depth"]) == (3, 1)
        ),
        "of four slots the first has three, and the second waits for three",
    )
    answers = await asyncio.gather(*asked)
    assert [answer.status for answer in answers] == [200, 200]
    waited = max(float(a.headers["server-timing"].split("=")[1].split(";")[0]) for a in answers)
    assert waited > 300


async def test_its_deadline_cuts_it_and_nothing_is_asked_to_stop(gateway: Gateway) -> None:
    gateway.set_faults("embed", {"stall_after": 0})
    stopped = gateway.metric('forebay_asked_to_stop_total{pool="embed"')
    answer = await gateway.ask({"model": MODEL, "input": "x"}, path=EMBEDDINGS)
    assert (answer.status, answer.code) == (504, "upstream_timeout")
    assert gateway.metric('forebay_asked_to_stop_total{pool="embed"') == stopped


async def test_a_dead_embedder_is_an_error_and_no_other_model_makes_its_vectors(
    gateway: Gateway,
) -> None:
    gateway.set_faults("embed", {"status": 503})
    answer = await gateway.ask({"model": "auto", "input": "x"}, path=EMBEDDINGS)
    assert answer.status == 503
    assert gateway.received("small") == gateway.received("large") == []


def test_the_same_input_is_asked_again(gateway: Gateway) -> None:
    """No cache answers, whatever the client says."""
    for _ in range(2):
        gateway.client(default_headers={"cache-control": "max-age=60"}).embeddings.create(
            model=MODEL, input="x"
        )
    assert len(gateway.received("embed")) == 2


async def test_a_method_that_is_not_post_is_refused(gateway: Gateway) -> None:
    asked = gateway.head("connection: close", method="GET", path=EMBEDDINGS)
    head, _ = await gateway.answer_to(asked)
    assert head.startswith(b"HTTP/1.1 405 ")
    assert b"\r\nallow: POST\r\n" in head
