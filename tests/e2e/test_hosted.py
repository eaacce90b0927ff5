"""A hosted API as a pool, as envoy/hosted.yaml says it: what it gets, each way it can fail."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.client import Gateway, chat
from tests.e2e.hosted_api import HOST, KEY, MODEL, HostedApi, certificate
from tests.gateways import MakeGateway
from tests.hosted_pool import pieces, put_in, upstream_filters


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedApi]:
    api = HostedApi(*certificate(tmp_path_factory.mktemp("tls"), HOST))
    api.start()
    yield api
    api.stop()


def with_hosted(
    document: Any,
    api: HostedApi,
    *,
    pool: dict[str, Any] | None = None,
    fallback: dict[str, Any] | None = None,
    edit: Callable[[Any], None] = lambda given: None,
) -> None:
    """The API's address and who signed for it are this test's. `edit` changes the pieces."""
    given = pieces()
    cluster = given["cluster"]
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": api.port}
    tls = cluster["transport_socket"]["typed_config"]["common_tls_context"]
    tls["validation_context"]["trusted_ca"]["filename"] = str(api.cert)
    given["pools"]["hosted"] |= pool or {}
    given["routing"]["fallback"] |= fallback or {}
    edit(given)
    document["node"]["metadata"]["forebay"]["response"] |= {"deadline": "2s", "grace": "500ms"}
    put_in(document, given)


@pytest.fixture(scope="module")
def keyed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTED_API_KEY", KEY)
        yield


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway, api: HostedApi, keyed: None) -> Gateway:
    return make_gateway(edit=lambda document: with_hosted(document, api))


@pytest.fixture
def gateway(shared_gateway: Gateway, api: HostedApi) -> Gateway:
    shared_gateway.reset()
    api.seen.clear()
    api.fault = ""
    return shared_gateway


def logs(gateway: Gateway) -> str:
    return "".join(path.read_text() for path in Path(gateway.stack.folder).glob("*.log"))


def settled(gateway: Gateway) -> None:
    gateway.until(lambda: gateway.status("hosted")["in_flight"] == 0, "a slot is still taken")
    gateway.wait_until_accounted()


FULL = {
    "x-feature": "f",
    "x-user-id": "ann",
    "x-tenant-id": "evil",
    "x-forebay-x": "1",
    "cookie": "a=b",
    "openai-organization": "org-client",
    "proxy-authorization": "Basic x",
    "x-latency-budget-ms": "5000",
}


@pytest.mark.parametrize("stream", [False, True])
async def test_it_answers_and_gets_nothing_that_is_ours(
    gateway: Gateway, api: HostedApi, stream: bool
) -> None:
    asked = chat("Hi", model=MODEL, stream=stream, top_k=3, priority=1, cache_salt="x", user="u")
    answer = await gateway.ask(asked, headers=FULL)
    assert answer.status == 200, answer
    assert answer.headers["x-forebay-served-by"] == "hosted"
    assert answer.headers["x-forebay-model"] == MODEL
    assert not {"openai-organization", "set-cookie"} & set(answer.headers)
    (seen,) = api.seen
    assert (seen.path, seen.headers["host"]) == ("/v1/chat/completions", HOST)
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    names = set(seen.headers)
    assert not {name for name in names if name.startswith(("x-forebay", "x-envoy", "x-forwarded"))}
    assert not names & {"x-tenant-id", "x-user-id", "x-feature", "x-api-key", "cookie"}
    assert not names & {"x-latency-budget-ms", "x-request-class", "accept-encoding"}
    assert not names & {"openai-organization", "proxy-authorization"}
    body = json.loads(seen.body)
    assert set(body) == {"model", "messages", "stream", "user", *(["stream_options"] * stream)}
    if stream:
        assert all("usage" not in event for event in answer.events)


@pytest.mark.parametrize("stream", [False, True])
async def test_its_tokens_are_counted_and_priced(gateway: Gateway, stream: bool) -> None:
    settled(gateway)
    line = 'forebay_tokens_total{kind="completion",pool="hosted"'
    before = gateway.metric(line), gateway.metric("forebay_cost_usd_total")
    await gateway.ask(chat(model=MODEL, stream=stream))
    settled(gateway)
    assert gateway.metric(line) == before[0] + 2
    cost = gateway.metric("forebay_cost_usd_total") - before[1]
    assert cost == pytest.approx((5 * 2.5 + 2 * 10) / 1e6)


async def test_as_a_later_tier_it_gets_the_same_and_leaves_no_credential(
    gateway: Gateway, api: HostedApi
) -> None:
    for pool in ("small", "large"):
        gateway.set_faults(pool, {"status": 503})
    answer = await gateway.ask(chat("Hi", model="small-7b"), headers=FULL)
    assert (answer.status, answer.headers["x-forebay-served-by"]) == (200, "hosted")
    assert json.loads(api.seen[0].body)["model"] == MODEL


async def test_what_it_could_not_obey_never_reaches_it(gateway: Gateway, api: HostedApi) -> None:
    answer = await gateway.ask(chat(model=MODEL, chat_template="x"))
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.json["error"]["param"] == "chat_template"
    assert api.seen == []


async def test_busy_is_429_with_its_retry_after_and_not_its_text(
    gateway: Gateway, api: HostedApi
) -> None:
    api.fault = "busy"
    answer = await gateway.ask(chat(model=MODEL))
    assert (answer.status, answer.code) == (429, "upstream_busy")
    assert answer.headers["retry-after"] == "7"
    assert "org-123" not in answer.body.decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("broken", 500, "upstream_error"),
        ("page", 502, "upstream_error"),
        ("moved", 502, "upstream_refused"),
    ],
)
async def test_what_is_no_answer_is_an_error_of_ours_without_its_text(
    gateway: Gateway, api: HostedApi, fault: str, status: int, code: str, stream: bool
) -> None:
    api.fault = fault
    answer = await gateway.ask(chat(model=MODEL, stream=stream))
    assert (answer.status, answer.code) == (status, code)
    assert "org-123" not in answer.body.decode()
    assert "location" not in answer.headers


async def test_what_takes_too_long_is_504(gateway: Gateway, api: HostedApi) -> None:
    api.fault = "slow"
    api.slow_s = 4
    answer = await gateway.ask(chat(model=MODEL))
    assert (answer.status, answer.code) == (504, "upstream_timeout")


async def test_a_client_that_is_refused_itself_still_gets_401(gateway: Gateway) -> None:
    answer = await gateway.ask(chat(), headers={"authorization": "Bearer no"})
    assert (answer.status, answer.code) == (401, "invalid_api_key")


@pytest.fixture
def wrong(make_gateway: MakeGateway, api: HostedApi) -> Any:
    """Gateways whose config of the API is wrong; a second tier where `fallback` says so."""

    def make(**changes: Any) -> Gateway:
        api.seen.clear()
        api.fault = ""
        return make_gateway(edit=lambda document: with_hosted(document, api, **changes))

    return make


async def test_a_wrong_credential_is_the_operators_affair(
    wrong: Any, api: HostedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTED_API_KEY", "sk-wrong-secret")
    gateway = wrong(fallback={"hosted": ["small"]})
    answer = await gateway.ask(chat(model=MODEL, max_tokens=1))
    assert (answer.status, answer.headers["x-forebay-served-by"]) == (200, "small")
    assert [seen.status for seen in api.seen] == [401]
    (at_small,) = gateway.received("small")
    assert "authorization" not in at_small["headers"]  # not the API's key either

    gateway.set_faults("small", {"status": 503})
    gateway.set_faults("large", {"status": 503})
    for more in ({}, {"stream": True}):
        last = await gateway.ask(chat("Hi", model="large-70b", max_tokens=1, **more))
        assert (last.status, last.code) == (502, "upstream_refused")
        assert "www-authenticate" not in last.headers
        assert b"secret" not in last.body
    gateway.until(
        lambda: gateway.metric('forebay_refused_tries_total{pool="hosted",status="401"') == 3,
        "the operator is not told",
    )
    gateway.until(lambda: "pool hosted: its servers refuse" in logs(gateway), "no error log")
    assert "sk-wrong-secret" not in logs(gateway)
    answers = 'forebay_answers_total{pool="hosted",status="502"'
    gateway.until(lambda: gateway.metric(answers) == 2, "counted as what the client got")


async def test_a_wrong_model_goes_to_the_next_tier_or_is_502(
    wrong: Any, api: HostedApi, keyed: None
) -> None:
    gateway = wrong(pool={"model": "gpt-y"}, fallback={"hosted": ["small"]})
    answer = await gateway.ask(chat(model="gpt-y", max_tokens=1))
    assert (answer.status, answer.headers["x-forebay-served-by"]) == (200, "small")
    assert answer.headers["x-forebay-model"] == "small-7b"
    gateway.set_faults("small", {"status": 503})
    gateway.set_faults("large", {"status": 503})
    last = await gateway.ask(chat(model="large-70b", max_tokens=1))
    assert (last.status, last.code) == (502, "upstream_refused")
    assert [seen.status for seen in api.seen] == [404, 404]


@pytest.fixture(scope="module")
def two_tiers(make_gateway: MakeGateway, api: HostedApi, keyed: None) -> Gateway:
    fallback = {"hosted": ["small"]}
    return make_gateway(edit=lambda document: with_hosted(document, api, fallback=fallback))


@pytest.mark.parametrize("fault", ["broken", "moved", "busy"])
async def test_where_it_does_not_answer_the_next_tier_does(
    two_tiers: Gateway, api: HostedApi, fault: str
) -> None:
    gateway = two_tiers
    gateway.reset()
    api.seen.clear()
    api.fault = fault
    answer = await gateway.ask(chat(model=MODEL, max_tokens=1))
    assert (answer.status, answer.headers["x-forebay-model"]) == (200, "small-7b")
    assert len(api.seen) == 1
    (at_small,) = gateway.received("small")
    assert not {"authorization", "x-forebay-prefix"} & set(at_small["headers"])


async def test_another_servers_certificate_is_not_trusted(
    wrong: Any, api: HostedApi, keyed: None
) -> None:
    def edit(given: Any) -> None:
        given["cluster"]["transport_socket"]["typed_config"]["sni"] = "other.example.com"

    gateway = wrong(edit=edit)
    answer = await gateway.ask(chat(model=MODEL))
    assert (answer.status, answer.code) == (503, "upstream_unavailable")
    assert api.seen == []  # it got no key


async def test_one_that_is_gone_is_503_or_the_next_tier(wrong: Any, keyed: None) -> None:
    def edit(given: Any) -> None:
        endpoint = given["cluster"]["load_assignment"]["endpoints"][0]["lb_endpoints"][0][
            "endpoint"
        ]
        endpoint["address"]["socket_address"]["port_value"] = 1

    gateway = wrong(edit=edit, fallback={"hosted": ["small"]})
    answer = await gateway.ask(chat(model=MODEL, max_tokens=1))
    assert (answer.status, answer.headers["x-forebay-served-by"]) == (200, "small")
    gateway.set_faults("small", {"status": 503})
    gateway.set_faults("large", {"status": 503})
    last = await gateway.ask(chat(model="large-70b", max_tokens=1))
    assert last.status == 503
    assert last.code in ("upstream_unavailable", "upstream_error")


async def test_a_new_key_in_a_file_is_taken_without_a_restart(
    make_gateway: MakeGateway, api: HostedApi, tmp_path: Path
) -> None:
    api.seen.clear()
    key, secret = tmp_path / "hosted-key", tmp_path / "hosted-key.yaml"
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

    def write(value: str) -> None:
        key.write_text(value)
        generic = {"secret": {"filename": str(key)}}
        text = yaml.safe_dump(
            {"resources": [{"@type": kind, "name": "hosted-key", "generic_secret": generic}]}
        )
        new = tmp_path / "new.yaml"
        new.write_text(text)
        new.replace(secret)

    def edit(given: Any) -> None:
        del given["secrets"]
        (injector,) = (
            one for one in upstream_filters(given["cluster"]) if "credential" in one["name"]
        )
        injector["typed_config"]["credential"]["typed_config"]["credential"]["sds_config"] = {
            "path_config_source": {"path": str(secret)},
            "resource_api_version": "V3",
        }

    write("sk-old")
    gateway = make_gateway(edit=lambda document: with_hosted(document, api, edit=edit))
    assert (await gateway.ask(chat(model=MODEL))).status == 502
    write(KEY)
    for _ in range(50):
        answer = await gateway.ask(chat(model=MODEL))
        if answer.status == 200:
            break
        await asyncio.sleep(0.1)
    assert answer.status == 200
