"""Requests for vectors: what is read, which pool gets them, how they are counted, what is refused
of a config that mixes them with text."""

from typing import Any

import orjson
import pytest

from extproc import openai
from extproc.config import Config, ConfigError, from_document
from extproc.front import tenant_at
from extproc.gateway import Gateway
from extproc.openai import CHAT, EMBEDDINGS, ApiError, Request
from extproc.refusals import Answered
from extproc.routing import Plan, Router, Unroutable
from extproc.tenants import Tenant, Tenants
from serving.protocol import parse_embeddings
from serving.settings import SimSettings
from serving.vectors import DIMENSIONS, Vectors, vector
from tests.unit.logged import logged

POOLS: dict[str, Any] = {
    "small": {"model": "s", "slots": 4},
    "embed": {"model": "e", "slots": 4, "serves": "embeddings", "price": {"input": 2}},
    "other": {"model": "e2", "slots": 4, "serves": "embeddings"},
    "large": {"model": "l", "slots": 2},
}


def document(**changes: Any) -> dict[str, Any]:
    return {"forebay": {"pools": POOLS, **changes}}


def config(**changes: Any) -> Config:
    return from_document(document(**changes)).config


# --- what is read --------------------------------------------------------------------------------


def asked(given: object, **members: object) -> Request:
    body = orjson.dumps({"model": "m", "input": given, **members})
    return openai.parse(EMBEDDINGS, body)


@pytest.mark.parametrize(
    ("given", "text", "tokens", "count"),
    [
        ("hello", "hello", 2, 1),
        (["hello", "you"], "hello\nyou", 3, 2),
        ([1, 2, 3], "", 3, 1),
        ([[1], [2, 3]], "", 3, 2),
        ("", "", 1, 1),
    ],
)
def test_every_shape_of_an_input(given: object, text: str, tokens: int, count: int) -> None:
    request = asked(given)
    assert (request.last_user_text, request.prompt_tokens_estimate) == (text, tokens)
    assert (request.sequences, request.max_tokens, request.stream) == (count, 0, False)
    assert not request.may_have_more_than(0), "there is nothing to be shortened"
    assert openai.abort_ids(request, "r") == []


def test_the_model_is_found_in_its_bytes_and_nothing_else_is_changed() -> None:
    body = b'{"input": ["\\"model\\": 1", "x"], "stream": true, "model": "e", "dimensions": 8}'
    request = openai.parse(EMBEDDINGS, body)
    assert openai.with_changes(body, request) == (body, request.model_span)
    start, end = request.model_span
    assert body[start:end] == b'"e"'


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [{"role": "user", "content": "a"}]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "encoding_format": 1}, "encoding_format"),
        ({"messages": [{"role": "user", "content": "a"}]}, "input"),
    ],
)
def test_what_is_refused(members: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        openai.parse(EMBEDDINGS, orjson.dumps({"model": "m", **members}))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("name", ["model", "input", "encoding_format"])
def test_no_member_that_is_read_may_come_twice(name: str) -> None:
    twice = orjson.dumps({"model": "m", "input": "a", "encoding_format": "float"})
    twice = twice[:-1] + b',"%b":"float"}' % name.encode()
    with pytest.raises(ApiError) as caught:
        openai.parse(EMBEDDINGS, twice)
    assert caught.value.param == name


def test_a_list_as_long_as_openai_takes_is_read() -> None:
    assert asked(["a"] * 2048).sequences == 2048


# --- which pool ----------------------------------------------------------------------------------


def planned(model: str, allowed: tuple[str, ...] = ("embed", "other"), **more: Any) -> Plan:
    made = config()
    return Router(made.pools, made.routing).plan_embeddings(model, allowed, **more)


def test_auto_is_the_first_pool_that_serves_them_and_a_name_its_own() -> None:
    assert planned("auto") == Plan(("embed",), "embeddings", "embed")
    assert planned("auto", ("other", "embed")).pools == ("other",)
    assert planned("e2") == Plan(("other",), "client-model", "other")


def test_no_other_model_takes_the_place_of_a_pool_that_is_down() -> None:
    assert planned("auto", down=("embed",)).pools == ("embed",)


def test_replicas_in_two_pools_of_one_model_may_stand_in_for_each_other() -> None:
    pools = {**POOLS, "other": {**POOLS["other"], "model": "e"}}
    made = config(pools=pools, routing={"fallback": {"embed": ["other"]}})
    router = Router(made.pools, made.routing)
    assert router.plan_embeddings("auto", ("embed", "other")).pools == ("embed", "other")
    down = router.plan_embeddings("auto", ("embed", "other"), ("embed",))
    assert (down.pools, down.reason) == (("other",), "embeddings; embed is down")


@pytest.mark.parametrize(
    ("model", "allowed", "why", "status"),
    [
        ("none", ("embed",), "model_not_found", 404),
        ("e2", ("embed",), "model_not_allowed", 403),
        ("s", ("embed",), "model_not_served_here", 400),
    ],
)
def test_why_there_is_none(model: str, allowed: tuple[str, ...], why: str, status: int) -> None:
    with pytest.raises(Unroutable) as caught:
        planned(model, allowed)
    assert (caught.value.why, caught.value.status) == (why, status)


def test_text_is_never_for_an_embedder() -> None:
    made = config()
    router = Router(made.pools, made.routing)
    generate = made.pools_that("generate")
    ask: dict[str, Any] = {"last_user_text": "Why?", "tokens_needed": 9, "latency_budget_ms": None}
    with pytest.raises(Unroutable) as caught:
        router.plan(model="e", allowed=generate, **ask)
    assert (caught.value.why, caught.value.status) == ("model_not_served_here", 400)
    assert router.plan(model="auto", allowed=("large",), **ask).pools == ("large",)
    with pytest.raises(Unroutable) as caught:
        router.plan(model="auto", allowed=(), **ask)
    assert caught.value.why == "model_not_allowed"


# --- whose they are ------------------------------------------------------------------------------


def resolved(**tenant: Any) -> tuple[Tenant, Config]:
    made = config(cache={"exact": {}}, tenants={"acme": tenant})
    return Tenants(made).resolve("acme"), made


def test_a_tenant_is_another_where_it_wants_vectors_but_for_its_name() -> None:
    tenant, made = resolved(weight=3)
    assert tenant.pools == ("small", "large")
    assert tenant.caching is not None
    there = tenant_at(EMBEDDINGS, tenant, made)
    assert (there.label, there.pools, there.share, there.caching) == (
        "acme",
        ("embed", "other"),
        3,
        None,
    )
    assert tenant_at(CHAT, tenant, made) is tenant


def test_a_tenant_without_a_pool_for_that_is_told() -> None:
    for pools, path in ((["small"], EMBEDDINGS), (["embed"], CHAT)):
        tenant, made = resolved(pools=pools)
        with pytest.raises(Answered) as caught:
            tenant_at(path, tenant, made)
        assert (caught.value.status, caught.value.decision) == (403, "model_not_allowed")


def test_where_nobody_serves_them_there_is_no_such_model() -> None:
    made = config(pools={"small": POOLS["small"]})
    with pytest.raises(Answered) as caught:
        tenant_at(EMBEDDINGS, Tenants(made).resolve(None), made)
    assert (caught.value.status, caught.value.decision) == (404, "model_not_found")


# --- how they are counted ------------------------------------------------------------------------

VECTORS = {
    "kind": "json",
    "tenant": "default",
    "status": "200",
    "served_by": "embed",
    "upstream_host": "127.0.0.1:1",
    "attempts": "1",
    "prompt_tokens": "100",
    "bill": "embed 90 90 other interactive - 2 0 0 - acme",
}


async def test_no_completion_tokens_are_none_where_vectors_were_made() -> None:
    gateway = Gateway(config())
    gateway.finished.account(logged(VECTORS))
    (cost,) = gateway.ledger.report().costs
    assert (cost.requests, cost.uncounted, cost.usd) == (1, 0, pytest.approx(200e-6))
    assert gateway.metrics.tokens == {("embed", "default", "prompt"): 100}
    assert gateway.metrics.endings == {("embed", "whole"): 1}
    assert not gateway.metrics.ttft
    assert not gateway.metrics.tpot


async def test_of_text_they_are_a_count_that_is_missing() -> None:
    gateway = Gateway(config())
    gateway.finished.account(logged({**VECTORS, "served_by": "small"}))
    (cost,) = gateway.ledger.report().costs
    assert (cost.requests, cost.uncounted) == (1, 1)


async def test_what_was_cut_has_an_estimate_of_its_prompt() -> None:
    gateway = Gateway(config())
    gateway.finished.account(logged({**VECTORS, "status": "504", "prompt_tokens": "-"}))
    assert gateway.metrics.tokens == {("embed", "default", "prompt_estimated"): 90}


async def test_what_it_will_take_is_its_input_alone() -> None:
    assert Gateway(config()).tokens_estimate("embed", asked(["x" * 40] * 3)) == 30


# --- the config ----------------------------------------------------------------------------------


def test_the_rules_choose_among_those_that_generate() -> None:
    order = {name: POOLS[name] for name in ("embed", "small", "other")}
    routing = config(pools=order).routing
    assert (routing.small, routing.large) == ("small", "small")
    only = config(pools={"embed": POOLS["embed"]})
    assert only.pools_that("generate") == ()


def test_a_price_needs_no_output() -> None:
    price = config().pools["embed"].price
    assert price is not None
    assert (price.input, price.output) == (2, 0)
    with pytest.raises(ConfigError, match=r"small\.price\.output"):
        config(pools={"small": {**POOLS["small"], "price": {"input": 1}}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routing": {"small": "embed"}}, "forebay.routing.small: 'embed' serves embeddings"),
        ({"tenants": {"a": {"pin": "embed"}}}, "forebay.tenants.a.pin: 'embed' serves embeddings"),
        (
            {"routing": {"fallback": {"small": ["embed"]}}},
            "forebay.routing.fallback.small: 'embed' serves embeddings, and 'small' serves gen",
        ),
        (
            {"routing": {"fallback": {"embed": ["other"]}}},
            "forebay.routing.fallback.embed: 'other' has another model",
        ),
        ({"pools": {"a": {"model": "m", "slots": 1, "serves": "x"}}}, "forebay.pools.a.serves"),
    ],
)
def test_what_cannot_be_mixed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert message in str(caught.value)


def test_there_is_no_partial_vector() -> None:
    made = config(response={"paths": {EMBEDDINGS: {"deadline": "3s"}}})
    assert made.expiry("default", EMBEDDINGS) == (3.0, 0.0, False)


async def test_an_embedder_that_is_no_vllm_makes_nobody_look_at_answers() -> None:
    guarded = {**POOLS, "embed": {**POOLS["embed"], "server": "other"}}
    assert not Gateway(config(pools=guarded)).policy.sees_answers


# --- the simulator -------------------------------------------------------------------------------

SETTINGS = SimSettings(port=0)


def test_the_simulators_vectors_have_length_one_and_are_the_same_each_time() -> None:
    assert vector("a") == vector("a") != vector("b")
    assert len(vector("a")) == DIMENSIONS
    assert sum(n * n for n in vector([1, 2])) == pytest.approx(1)


def test_the_simulators_usage_is_openais() -> None:
    body = orjson.dumps({"input": ["four", "fourfour"]})
    answer = Vectors(parse_embeddings(body, SETTINGS), answer_id="x", model="m", created=1)
    told = orjson.loads(answer.whole([], 0))
    assert told["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [item["index"] for item in told["data"]] == [0, 1]
