"""What the gateway tells vLLM of class and tenant; its lists of vLLM's members are whole."""

import asyncio
import json
import subprocess

import pytest

from extproc.openai.members import CONTRACT, HINTS, OURS
from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway
from tests.vllm.install import Places
from tests.vllm.servers import MAX_NUM_SEQS, Server
from tests.vllm.test_load import MANY, stories

# https://platform.openai.com/docs/api-reference, as far as vLLM has it.
OPENAIS = {
    *("messages", "prompt", "model", "frequency_penalty", "presence_penalty", "logit_bias"),
    *("logprobs", "top_logprobs", "max_tokens", "max_completion_tokens", "n", "response_format"),
    *("seed", "stop", "stream", "stream_options", "temperature", "top_p", "tools", "tool_choice"),
    *("reasoning_effort", "parallel_tool_calls", "user", "suffix", "echo"),
    *("input", "encoding_format", "dimensions"),
}

FIELDS = """
import json
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest
kinds = (ChatCompletionRequest, CompletionRequest, EmbeddingCompletionRequest)
print(json.dumps(sorted({name for kind in kinds for name in kind.model_fields})))
"""


def test_every_member_that_vllm_knows_is_in_one_list(vllm_places: Places) -> None:
    command = [str(vllm_places.python), "-c", FIELDS]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    fields = set(json.loads(said.splitlines()[-1]))
    lists = [OPENAIS, OURS, HINTS, set(CONTRACT)]
    assert fields - set().union(*lists) == set()
    assert sum(map(len, lists)) == len(set().union(*lists))
    gone = {name for name in CONTRACT if name.startswith("guided_")}
    assert (OURS | HINTS | set(CONTRACT)) - gone - fields == set()


@pytest.fixture(scope="module")
def told_gateway(make_gateway: MakeGateway, shared_gateway: Gateway) -> Gateway:
    urls = {pool: (url,) for pool, url in shared_gateway.stack.config.backend_urls.items()}
    pool = {"priority": True, "cache_salt": "tenant", "slots": MANY}
    tenants = {"default": {}, "acme": {}, "nightly": {"class": "batch"}}
    policy = {"pools": {"large": pool}, "admission": {"high_water": 64}, "tenants": tenants}
    return make_gateway(backends=urls, policy=policy)


def ask(gateway: Gateway, key: str, text: str, **more: object) -> "asyncio.Task":
    headers = {"authorization": f"Bearer sk-demo-{key}"}
    body = chat(text, model="large-70b", max_tokens=1, **more)
    return asyncio.create_task(gateway.ask(body, headers=headers, timeout_s=60))


async def test_interactive_requests_go_before_batch_that_came_earlier(
    told_gateway: Gateway, large: Server
) -> None:
    async with told_gateway.async_client() as client, stories(client, MAX_NUM_SEQS - 1):
        async with stories(client, 1):
            await Gateway.until_async(lambda: large.running() == MAX_NUM_SEQS, "it is not full")
            batch = [ask(told_gateway, "nightly", f"b{n}") for n in range(2)]
            await Gateway.until_async(lambda: large.waiting() == 2, "batch does not wait")
            eager = ask(told_gateway, "acme", "now", priority=9, request_id="mine")
            await Gateway.until_async(lambda: large.waiting() == 3, "it does not wait")
        # One place is free.
        answer = await eager
        assert answer.status == 200, answer
        assert [one.done() for one in batch] == [False, False]
        assert [answer.status for answer in await asyncio.gather(*batch)] == [200, 200]


async def test_a_prefix_is_cached_within_a_tenant_alone(
    told_gateway: Gateway, large: Server
) -> None:
    text = "It was a bright cold day in April, and the clocks were striking thirteen. " * 25
    cached = []
    for key, more in (
        ("acme", {}),
        ("acme", {}),
        ("nightly", {}),
        ("nightly", {}),
        ("acme", {"cache_salt": "x"}),
        ("nightly", {"cache_salt": "x"}),
        ("acme", {"cache_salt": "x"}),
    ):
        hits = large.metric("vllm:prefix_cache_hits_total")
        answer = await ask(told_gateway, key, text, **more)
        assert answer.status == 200, answer
        cached.append(large.metric("vllm:prefix_cache_hits_total") - hits > 0)
    assert cached == [False, True, False, True, False, False, True]
