"""The time to the first token: from Envoy's log, and as a client measures it on its own socket.

The client is a thread that does nothing else. On a busy machine the two differ by how long somebody
on the way was ready to run and was not let to, which the kernel tells.
"""

import asyncio
import json
import math
import random
import socket
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.client import Gateway, chat
from tests.e2e.numbers import Way
from tests.gateways import MakeGateway

REQUESTS = 60
POOLS: dict[Way, str] = {"ask": "small", "guard": "large"}
MODELS: dict[Way, str] = {"ask": "small-7b", "guard": "large-70b"}
OFF_MS = 5.0


class Measured(NamedTuple):
    ttft_ms: float
    """From the first byte sent to the first byte of the first event."""
    kept_waiting_ms: float
    """Of that, what the client and the `threads` were ready to run and had no CPU."""


def _threads(gateway: Gateway) -> list[Path]:
    """Those on a request's way: Envoy's worker, and the processor's event loop."""
    envoy, processor = (gateway.stack.pid(name) for name in ("envoy", "processor"))
    tasks = list(Path(f"/proc/{envoy}/task").iterdir())
    workers = [task for task in tasks if (task / "comm").read_text().startswith("wrk:worker")]
    assert len(workers) == 1, workers
    return [*workers, Path(f"/proc/{processor}/task/{processor}")]


def _kept_waiting_ns(threads: list[Path]) -> int:
    files = [thread / "schedstat" for thread in (Path("/proc/thread-self"), *threads)]
    return sum(int(file.read_text().split()[1]) for file in files)


def _measure(gateway: Gateway, request: bytes, threads: list[Path]) -> Measured:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waited_ns = _kept_waiting_ns(threads)
        began_ns = time.perf_counter_ns()
        connection.sendall(request)
        got = b""
        while b"data: " not in got:
            piece = connection.recv(65536)
            assert piece, got
            got += piece
        took_ns = time.perf_counter_ns() - began_ns
        waited_ns = _kept_waiting_ns(threads) - waited_ns
        while b"[DONE]" not in got:
            piece = connection.recv(65536)
            assert piece, got
            got += piece
    return Measured(took_ns / 1e6, waited_ns / 1e6)


def _told_at_once(document: Any) -> None:
    manager = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    log = manager["typed_config"]["access_log"][0]["typed_config"]
    # Envoy 1.40 obeys the interval in here alone, where it is deprecated.
    log["common_config"] = {
        **{key: log.pop(key) for key in ("log_name", "grpc_service")},
        "transport_api_version": "V3",
        "buffer_flush_interval": "0.02s",
    }


# As vLLM's --sse-keep-alive-interval: comments that are no token.
KEEP_ALIVE = ("--sse-keep-alive-interval", "0.008")


@pytest.mark.parametrize("keep_alive", [(), KEEP_ALIVE], ids=["silent", "kept alive"])
@pytest.mark.parametrize("way", POOLS)
async def test_the_time_to_the_first_token_is_what_a_client_measures(
    make_gateway: MakeGateway,
    way: Way,
    keep_alive: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    gateway = await asyncio.to_thread(
        make_gateway,
        policy={"pools": {"large": {"server": "other"}}},
        edit=_told_at_once,
        sim_args={POOLS[way]: ("--prefill-ms", "2000", *keep_alive)},
    )
    count, total = (
        f'forebay_ttft_seconds_{what}{{pool="{POOLS[way]}"' for what in ("count", "sum")
    )
    threads = _threads(gateway)
    off_ms: list[float] = []
    unexplained_ms: list[float] = []
    before_s = 0.0
    draw = random.Random(1)
    for number in range(1, REQUESTS + 1):
        body = chat("word " * draw.randrange(80), model=MODELS[way], stream=True, max_tokens=3)
        data = json.dumps(body).encode()
        head = gateway.head("content-type: application/json", f"content-length: {len(data)}")
        measured = await asyncio.to_thread(_measure, gateway, head + data, threads)
        await gateway.ask(chat(model=MODELS[way], max_tokens=1))  # has no first token
        await asyncio.to_thread(gateway.wait_until_accounted)
        assert gateway.metric(count) == number
        now_s = gateway.metric(total)
        off_ms.append(measured.ttft_ms - (now_s - before_s) * 1000)
        unexplained_ms.append(abs(off_ms[-1]) - measured.kept_waiting_ms)
        before_s = now_s
    sizes = sorted(map(abs, off_ms))
    p95 = sizes[math.ceil(0.95 * REQUESTS) - 1]
    with capsys.disabled():
        print(
            f"\n{way}{', kept alive' * bool(keep_alive)}: TTFT is off by "
            f"{statistics.median(sizes):.2f} ms (median), {p95:.2f} (p95), "
            f"{sizes[-1]:.2f} at most, {max(unexplained_ms):.2f} beyond the wait for a CPU; "
            f"{before_s / REQUESTS * 1000:.0f} ms on average"
        )
    assert min(off_ms) > -0.5, "the gateway says more than the client waited"
    assert statistics.median(sizes) < OFF_MS
    assert max(unexplained_ms) < OFF_MS


async def test_a_stream_of_comments_alone_has_no_first_token_and_no_tokens(
    make_gateway: MakeGateway,
) -> None:
    gateway = await asyncio.to_thread(
        make_gateway,
        policy={"response": {"deadline": "500ms", "grace": "100ms", "on_expiry": "cut"}},
        sim_args={"small": ("--prefill-ms", "100000", *KEEP_ALIVE)},
    )
    data = json.dumps(chat("word " * 50, model="small-7b", stream=True)).encode()
    async with gateway.raw() as (reader, writer):
        head = gateway.head("content-type: application/json", f"content-length: {len(data)}")
        writer.write(head + data)
        got = await reader.read()
    assert got.count(b": keep-alive") > 5
    assert b"data: " not in got
    await asyncio.to_thread(gateway.wait_until_accounted)
    assert gateway.metric('forebay_endings_total{ending="cut",pool="small"') == 1
    assert gateway.metric("forebay_ttft_seconds_count") == 0
    assert gateway.metric("forebay_tokens_total") == 0
