"""What clients get when a real server dies: before the answer, in it, or without a word.

Each test takes a server's life. They stand in an order in which few have to be started anew.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.e2e.client import Gateway
from tests.gateways import MakeGateway
from tests.vllm.asked import QUESTION, STORY
from tests.vllm.servers import Fleet, Server

DEADLINE_S, GRACE_S = 5.0, 1.0
# Envoy resets a stream at deadline and grace, and closes its HTTP/1 connection a second later (its
# delayed_close_timeout): only then the client knows. The rest is for a busy machine.
KNOWN_AFTER_S = DEADLINE_S + GRACE_S + 1 + 0.5

# What the client's HTTP library says of a transfer that ends without its end.
CUT = "peer closed connection without sending complete message body"

# Answers to it would be stored: they pass through the processor.
CACHEABLE = STORY | {"temperature": 0}


async def _first_chunks(stream: openai.AsyncStream[Any]) -> None:
    for _ in range(5):
        await anext(stream)


async def _rest(stream: openai.AsyncStream[Any]) -> str | None:
    """Read to the end; the last finish reason."""
    reason = None
    async for chunk in stream:
        if chunk.choices:
            reason = chunk.choices[0].finish_reason
    return reason


async def _json_answer(client: openai.AsyncOpenAI) -> str | None:
    return (await client.chat.completions.create(**STORY)).choices[0].finish_reason


def _outcome(end: object) -> str:
    """What a client was told in the end: a finish reason, a status with its code, an error inside
    a stream, or nothing (cut)."""
    match end:
        case openai.APIStatusError():
            return f"{end.status_code} {end.code}"
        case openai.APIConnectionError() if CUT in str(end.__cause__):
            return "cut"
        case openai.APIError(body={"code": 500}):
            return "error event"
        case _:
            return str(end)


def _in_flight(gateway: Gateway) -> int:
    return sum(gateway.status(pool)["in_flight"] for pool in ("small", "large"))


async def test_a_dead_server_is_answered_for_by_the_other_pool(
    fleet: Fleet, make_gateway: MakeGateway
) -> None:
    small, large = fleet.living("small", "large")
    gateway = make_gateway(backends={"small": (small.url,), "large": (large.url,)})
    asked: dict[str, Any] = {"model": "small-7b", "messages": QUESTION, "max_tokens": 8}
    async with gateway.async_client() as client:
        stream = await client.chat.completions.create(**STORY | {"model": "small-7b"}, stream=True)
        await _first_chunks(stream)
        small.kill()

        create = client.chat.completions.with_raw_response.create
        answer = await create(**asked)
        assert answer.headers["x-forebay-served-by"] == "large"
        assert answer.parse().model == "large-70b"
        assert answer.parse().choices[0].message.content

        [end] = await asyncio.gather(_rest(stream), return_exceptions=True)
        assert _outcome(end) == "cut"  # what has begun is not tried elsewhere

        await gateway.until_async(lambda: not gateway.status("small")["up"], "still called up")
        answer = await create(**asked)
        assert answer.headers["x-forebay-route"].endswith("small is down")
        assert answer.headers["x-forebay-served-by"] == "large"
        assert answer.headers["x-envoy-attempt-count"] == "1"
    gateway.wait_until_idle()


async def _outcomes(
    happens: Callable[[], None], gateway: Gateway, server: Server
) -> tuple[list[str], float]:
    """Let it happen while the server works on a JSON answer and two streams, one of which would be
    stored: what each client was told, and seconds from the first request to the last end."""
    async with gateway.async_client() as client:
        began = time.monotonic()
        json_answer = asyncio.create_task(_json_answer(client))
        streams = [
            await client.chat.completions.create(**body, stream=True) for body in (STORY, CACHEABLE)
        ]
        for stream in streams:
            await _first_chunks(stream)
        assert server.running() == 3
        happens()
        ends = await asyncio.gather(json_answer, *map(_rest, streams), return_exceptions=True)
        took_s = time.monotonic() - began
    gateway.until(lambda: _in_flight(gateway) == 0, "a slot is still taken")
    assert gateway.metric("forebay_cache_entries") == 0
    return [_outcome(end) for end in ends], took_s


@pytest.fixture
def hurried(fleet: Fleet, make_gateway: MakeGateway) -> tuple[Gateway, Server]:
    """A gateway with a deadline, and the only server behind it."""
    [large] = fleet.living("large")
    gateway = make_gateway(
        backends={"small": (large.url,), "large": (large.url,)},
        policy={"response": {"deadline": f"{DEADLINE_S:g}s", "grace": f"{GRACE_S:g}s"}},
    )
    return gateway, large


async def test_clients_of_a_server_that_stands_still_are_cut_at_deadline_and_grace(
    hurried: tuple[Gateway, Server],
) -> None:
    gateway, large = hurried
    try:
        outcomes, took_s = await _outcomes(lambda: large.signal(signal.SIGSTOP), gateway, large)
    finally:
        large.signal(signal.SIGCONT)
    assert outcomes == ["504 upstream_timeout", "cut", "cut"]
    assert DEADLINE_S + GRACE_S - 0.1 < took_s < KNOWN_AFTER_S


async def test_clients_of_a_server_told_to_end_are_told_so_before_deadline_and_grace(
    hurried: tuple[Gateway, Server], fleet: Fleet
) -> None:
    """After SIGTERM vLLM with default settings aborts what is under way and kills its engine. By
    chance the answers end well-formed at once, or the process is gone first, or the connections
    stay open and silent. Whichever it is: in time, and no answer looks whole."""
    gateway, large = hurried
    [json_outcome, *stream_outcomes], took_s = await _outcomes(
        large.process.terminate, gateway, large
    )
    large.kill()
    fleet.say(f"after SIGTERM, within {took_s:.1f} s: JSON {json_outcome}; {stream_outcomes}")
    assert json_outcome in ("abort", "503 upstream_unavailable", "504 upstream_timeout")
    assert set(stream_outcomes) <= {"abort", "error event", "cut"}
    assert took_s < KNOWN_AFTER_S


async def test_an_engine_that_dies_mid_stream_ends_it_with_an_error_that_nobody_stores(
    fleet: Fleet, make_gateway: MakeGateway
) -> None:
    small, large = fleet.living("small", "large")
    gateway = make_gateway(backends={"small": (small.url,), "large": (large.url,)})
    async with gateway.async_client() as client:
        stream = await client.chat.completions.create(**CACHEABLE, stream=True)
        not_begun = asyncio.create_task(
            client.chat.completions.with_raw_response.create(**STORY | {"max_tokens": 60})
        )
        await _first_chunks(stream)
        await gateway.until_async(lambda: large.running() == 2, "not both are under way")
        assert stream.response.status_code == 200
        os.kill(large.engine_pid(), signal.SIGKILL)
        killed = time.monotonic()

        [end] = await asyncio.gather(_rest(stream), return_exceptions=True)
        assert _outcome(end) == "error event"
        assert time.monotonic() - killed < 5

        # Nothing of this one had been answered, so it was asked again of the other pool.
        assert (await not_begun).headers["x-forebay-served-by"] == "small"
        await gateway.until_async(lambda: _in_flight(gateway) == 0, "a slot is still taken")
        assert gateway.metric("forebay_cache_entries") == 0

        again = await client.chat.completions.with_raw_response.create(
            **CACHEABLE | {"max_tokens": 8}
        )
        assert again.headers["cache-status"] == "forebay; fwd=uri-miss"
        assert again.headers["x-forebay-served-by"] == "small"
    large.kill()
