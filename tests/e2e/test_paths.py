"""What Forebay does not serve is refused by rule: no path of vLLM's own, however it is written,
reaches a model server."""

import json

import pytest

from tests.e2e.client import Gateway

# As vLLM 0.32 has them, and OpenAI's own.
OTHERS = (
    *(
        "/v1/responses",
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/cancel",
        "/v1/responses/render",
    ),
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions/batch"),
    *("/v1/chat/completions/render", "/v1/completions/render", "/v1/chat/completions/derender"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/generations"),
    *("/v1/moderations", "/v1/batches", "/v1/files", "/v1/models/small-7b"),
    *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/pooling", "/classify"),
    *("/v2/embed", "/v1/systemone", "/generative_scoring", "/invocations", "/cohere/v2/chat"),
    *("/tokenize", "/detokenize", "/tokenizer_info", "/server_info", "/version", "/load"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", "/update_weights"),
    *("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache", "/start_profile"),
    *("/inference/v1/abort_requests", "/inference/v1/generate", "/scale_elastic_ep", "/metrics"),
    *("/health", "/ping", "/docs", "/openapi.json", "/sim/faults"),
)
WRITTEN_OTHERWISE = (
    *("//v1/rerank", "/v1//rerank", "/v1/./rerank", "/v1/embeddings/../rerank", "/v1%2frerank"),
    *("/v1/chat/completions/..%2f..%2f..%2ftokenize", "/v1/chat/%2e%2e/%2e%2e/tokenize"),
    *(
        "/v1/completions%00",
        "/v1/completions/",
        "/V1/completions",
        "/v1/completions;x",
        "/v1/completion",
    ),
    *("/v1/embeddings/", "/v1/Embeddings", "/v1/embeddings%2f", "/v1\\rerank", "/x/v1/completions"),
)
BODY = b'{"model":"small-7b","input":"x","prompt":"x","messages":[{"role":"user","content":"x"}]}'


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "PUT"])
async def test_another_path_is_404_and_reaches_nobody(gateway: Gateway, method: str) -> None:
    for path in (*OTHERS, *WRITTEN_OTHERWISE):
        length = f"content-length: {len(BODY)}"
        asked = gateway.head(length, "connection: close", method=method, path=path) + BODY
        head, body = await gateway.answer_to(asked)
        # Envoy itself refuses a byte that no path may have.
        wanted = {400, 404} if "%00" in path or "\\" in path else {404}
        assert int(head.split()[1]) in wanted, (path, head)
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}, path
        assert error["code"] in ("not_found", "bad_request"), path
    assert gateway.received("small") == gateway.received("large") == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_another_method_is_405(gateway: Gateway, path: str, method: str) -> None:
    head, body = await gateway.answer_to(
        gateway.head("connection: close", method=method, path=path)
    )
    assert head.startswith(b"HTTP/1.1 405 "), head
    assert json.loads(body)["error"]["code"] == "method_not_allowed"
    assert gateway.received("small") == gateway.received("large") == []


async def test_slashes_that_are_merged_lead_to_the_same_place(gateway: Gateway) -> None:
    answer = await gateway.ask(json.loads(BODY), path="//v1//completions")
    assert answer.status == 200
    (request,) = gateway.received("small")
    assert request["path"] == "/v1/completions"
