"""/v1/embeddings through real Envoy: admitted, limited and billed like the rest, by its own usage."""

import asyncio
import copy
from typing import Any

import openai
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
