"""A request through real Envoy: answers, headers, routes, bytes, refusals."""

import json

import openai
import pytest

from tests.e2e.client import CHAT, Gateway, chat


def test_a_plain_answer_by_the_official_client(gateway: Gateway) -> None:
    answer = gateway.client().chat.completions.create(
        model="auto", messages=[{"role": "user", "content": "Is the sky blue?"}], max_tokens=5
    )
    assert answer.choices[0].message.content == "This is a simulated answer:"
    assert answer.usage
    assert answer.usage.completion_tokens == 5
    assert answer.model == "small-7b"


def test_a_streamed_answer_has_no_usage_chunk_that_the_client_did_not_ask_for(
    gateway: Gateway,
) -> None:
    chunks = list(
        gateway.client().chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, stream=True
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "This is a simulated answer:"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_a_streamed_answer_has_the_usage_that_the_client_asked_for(gateway: Gateway) -> None:
    chunks = list(
        gateway.client().chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_work_like_chat(gateway: Gateway, stream: bool) -> None:
    body = {"model": "auto", "prompt": "Compare A and B", "max_tokens": 3, "stream": stream}
    answer = await gateway.ask(body, path="/v1/completions")
    assert answer.status == 200
    assert answer.headers["x-forebay-route"] == "large; reason=word-compare"


async def test_an_answer_says_how_it_was_routed_and_who_served(gateway: Gateway) -> None:
    answer = await gateway.ask(chat("Explain why", stream=True, max_tokens=2))
    assert answer.headers["x-forebay-route"] == "large; reason=word-why"
    assert answer.headers["x-forebay-served-by"] == "large"
    assert answer.headers["x-envoy-attempt-count"] == "1"
    assert answer.headers["server-timing"] == 'queue;dur=0.0;desc="position 0"'
    assert len(answer.headers["x-request-id"]) == 36
    assert answer.events[0]["id"] == f"chatcmpl-{answer.headers['x-request-id']}"


async def test_the_latency_budget_routes_and_a_bad_one_is_refused(gateway: Gateway) -> None:
    fast = await gateway.ask(chat("Explain why"), headers={"x-latency-budget-ms": "999"})
    assert fast.headers["x-forebay-route"] == "small; reason=latency-budget"
    bad = await gateway.ask(chat("Explain why"), headers={"x-latency-budget-ms": "soon"})
    assert (bad.status, bad.code) == (400, "invalid_request")


async def test_a_long_prompt_goes_to_the_pool_that_has_room(gateway: Gateway) -> None:
    answer = await gateway.ask(chat("word " * 10_000, max_tokens=2))
    assert answer.status == 200
    assert answer.headers["x-forebay-route"] == "large; reason=context"


def test_a_model_named_by_the_client_is_honoured(gateway: Gateway) -> None:
    answer = gateway.client().chat.completions.with_raw_response.create(
        model="large-70b", messages=[{"role": "user", "content": "Hi?"}], max_tokens=2
    )
    assert answer.headers["x-forebay-route"] == "large; reason=client-model"
    assert gateway.received("small") == []


def test_an_unknown_model_is_404_and_reaches_no_server(gateway: Gateway) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        gateway.client().chat.completions.create(
            model="gpt-9", messages=[{"role": "user", "content": "Hi"}]
        )
    assert refused.value.code == "model_not_found"
    assert gateway.received("small") == gateway.received("large") == []


def test_models_lists_what_a_client_may_ask_for(gateway: Gateway) -> None:
    names = [model.id for model in gateway.client().models.list()]
    assert names == ["auto", "small-7b", "large-70b"]


async def test_only_the_model_name_of_the_body_changes_on_the_way(gateway: Gateway) -> None:
    sent = (
        b'{ "model" : "auto" ,\n "messages":[{"role":"user","content":"\\u0048i \\ud83d\\ude00 '
        b'{\\"model\\": \\"auto\\"}"}], "seed":12345678901234567890, "x":{"model":"auto"},'
        b'"temperature":1.0e0,"max_tokens":1}'
    )
    answer = await gateway.ask(sent)
    assert answer.status == 200
    (request,) = gateway.received("small")
    assert request["body"] == sent.replace(b'"auto"', b'"small-7b"', 1)


async def test_a_stream_gets_include_usage_and_nothing_else(gateway: Gateway) -> None:
    sent = (
        b'{"stream": true, "messages":[{"role":"user","content":"Hi"}],'
        b'"max_tokens":1, "model":"auto"}'
    )
    await gateway.ask(sent)
    (request,) = gateway.received("small")
    body = json.loads(request["body"])
    assert body.pop("stream_options") == {"include_usage": True}
    assert body == json.loads(sent) | {"model": "small-7b"}
    assert int(request["headers"]["content-length"]) == len(request["body"])


async def test_internal_headers_and_the_tenant_do_not_reach_the_model(gateway: Gateway) -> None:
    await gateway.ask(
        chat(max_tokens=1),
        headers={"x-tenant-id": "o", "x-latency-budget-ms": "5", "x-vllm-priority": "-9"},
    )
    (request,) = gateway.received("small")
    names = set(request["headers"])
    assert not {name for name in names if name.startswith("x-forebay-")}
    assert not names & {"x-tenant-id", "x-latency-budget-ms", "x-envoy-max-retries"}
    assert "x-envoy-retriable-status-codes" not in names
    assert not names & {"authorization", "x-api-key", "accept-encoding", "x-vllm-priority"}


@pytest.mark.parametrize(
    "forged",
    [
        {"x-forebay-admit": "stream"},
        {"X-Forebay-Admit": "json"},
        {"x-forebay-tier": "large"},
        {"x-forebay-tier-host": "evil", "x-forebay-tier-path": "/evil"},
        {"x-envoy-upstream-rq-timeout-ms": "1", "x-envoy-max-retries": "9"},
        {"x-request-id": "mine"},
    ],
)
async def test_a_forged_internal_header_changes_nothing(
    gateway: Gateway, forged: dict[str, str]
) -> None:
    answer = await gateway.ask(chat(max_tokens=3), headers=forged)
    assert answer.status == 200
    assert answer.headers["x-forebay-served-by"] == "small"
    (request,) = gateway.received("small")
    assert request["path"] == CHAT
    assert json.loads(request["body"])["model"] == "small-7b"
    assert request["id"] == answer.headers["x-request-id"] != "mine"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/", 404, "not_found"),
        ("/v1/embeddings", 404, "model_not_found"),  # no pool serves it here
        ("/v1/chat/completions/", 404, "not_found"),
        ("/v1/../inference/v1/abort_requests", 404, "not_found"),
        ("/inference/v1/abort_requests", 404, "not_found"),
        ("/v1%2fchat/completions", 404, "not_found"),
        ("/v1/chat%2Fcompletions", 404, "not_found"),
        ("/v1/..%2finference/v1/abort_requests", 404, "not_found"),
        ("/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_a_path_that_is_not_ours_is_refused_as_json(
    gateway: Gateway, path: str, status: int, code: str
) -> None:
    asked = gateway.head("content-length: 2", "connection: close", path=path) + b"{}"
    head, body = await gateway.answer_to(asked)
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
    assert json.loads(body)["error"]["code"] == code
    assert gateway.received("small") == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b'{"model":"auto","messages":[]}', 400, "invalid_request"),
        (
            b'{"model":"auto","model":"large-70b","messages":[{"role":"user","content":"a"}]}',
            400,
            "invalid_request",
        ),
        (b" " * (16 * 1024 * 1024 + 1), 413, "request_too_large"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused_as_json(
    gateway: Gateway, body: bytes, status: int, code: str
) -> None:
    answer = await gateway.ask(body)
    assert (answer.status, answer.code) == (status, code)
    assert gateway.received("small") == []


@pytest.mark.parametrize("encoding", ["gzip, chunked", "identity", "chunked, chunked"])
async def test_a_transfer_encoding_that_nobody_knows_is_the_clients_mistake(
    gateway: Gateway, encoding: str
) -> None:
    asked = gateway.head(f"transfer-encoding: {encoding}", "connection: close")
    head, body = await gateway.answer_to(asked)
    assert head.startswith(b"HTTP/1.1 400 "), head
    assert json.loads(body)["error"]["code"] == "bad_request"


async def test_a_body_of_exactly_the_limit_is_taken_and_survives_its_splices(
    gateway: Gateway,
) -> None:
    body = json.dumps(chat(max_tokens=1, stream=True, metadata={"x": ""})).encode()
    body = body.replace(b'"x": ""', b'"x": "%b"' % (b"y" * (16 * 1024 * 1024 - len(body))))
    assert len(body) == 16 * 1024 * 1024
    gateway.set_faults("small", {"status": 503})
    answer = await gateway.ask(body)
    assert (answer.status, answer.headers["x-forebay-served-by"]) == (200, "large")
    over = await gateway.ask(body.replace(b"yyy", b"yyyy", 1))
    assert (over.status, over.code) == (413, "request_too_large")


async def test_a_body_of_several_megabytes_passes(gateway: Gateway) -> None:
    filler = "x" * 5_000_000  # above gRPC's default message limit
    answer = await gateway.ask(chat(max_tokens=1, metadata={"filler": filler}))
    assert answer.status == 200
    (request,) = gateway.received("small")
    assert len(request["body"]) > 5_000_000


async def test_a_compressed_body_and_a_missing_one_are_refused(gateway: Gateway) -> None:
    compressed = await gateway.ask(b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert (compressed.status, compressed.code) == (415, "unsupported_encoding")
    head, _ = await gateway.answer_to(gateway.head("content-length: 0", "connection: close"))
    assert head.startswith(b"HTTP/1.1 400 ")


async def test_tokens_and_times_are_counted_without_the_body_in_python(gateway: Gateway) -> None:
    gateway.wait_until_accounted()
    before = {
        kind: gateway.metric(f'forebay_tokens_total{{kind="{kind}",pool="large"')
        for kind in ("prompt", "completion")
    }
    streams = gateway.metric('forebay_ttft_seconds_count{pool="large"')
    hidden = await gateway.ask(chat("Why", stream=True, max_tokens=7))
    asked = await gateway.ask(
        chat("Why", stream=True, max_tokens=7, stream_options={"include_usage": True})
    )
    plain = await gateway.ask(chat("Why", max_tokens=7))
    usage = plain.json["usage"]
    assert asked.events[-1]["usage"]["completion_tokens"] == 7
    assert "usage" not in hidden.events[-1]
    gateway.wait_until_accounted()
    for kind in ("prompt", "completion"):
        line = f'forebay_tokens_total{{kind="{kind}",pool="large"'
        assert gateway.metric(line) == before[kind] + 3 * usage[f"{kind}_tokens"]
    assert gateway.metric('forebay_ttft_seconds_count{pool="large"') == streams + 2
    assert gateway.metric('forebay_tpot_seconds_count{pool="large"') >= 2
