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
from tests.vllm.servers import Fleet, Server
from tests.vllm.test_answers import QUESTION
from tests.vllm.test_endings import STORY

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


async def _rest(stream: openai.AsyncStream[Any]) -> float:
    """Read to the end; the time of the end."""
    try:
        async for _ in stream:
            pass
    finally:
        ended = time.monotonic()
    return ended


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

        with pytest.raises(openai.APIConnectionError) as caught:  # begun: not tried elsewhere
            await _rest(stream)
        assert CUT in str(caught.value.__cause__)

        await gateway.until_async(lambda: not gateway.status("small")["up"], "still called up")
        answer = await create(**asked)
        assert answer.headers["x-forebay-route"].endswith("small is down")
        assert answer.headers["x-forebay-served-by"] == "large"
        assert answer.headers["x-envoy-attempt-count"] == "1"
    gateway.wait_until_idle()


async def _ends_after(
    happens: Callable[[], None], gateway: Gateway, server: Server
) -> tuple[list[Any], float]:
    """Let it happen while the server works on a JSON answer and two streams, one of which would be
    stored: how each ended for its client, and seconds from the first request to the last end."""
    async with gateway.async_client() as client:
        began = time.monotonic()
        json_answer = asyncio.create_task(client.chat.completions.create(**STORY))
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
    return ends, took_s


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
        [json_end, *stream_ends], took_s = await _ends_after(
            lambda: large.signal(signal.SIGSTOP), gateway, large
        )
    finally:
        large.signal(signal.SIGCONT)
    assert DEADLINE_S + GRACE_S - 0.1 < took_s < KNOWN_AFTER_S
    # JSON: a clean error. A stream: cut, without [DONE] and without the end of the transfer.
    assert isinstance(json_end, openai.InternalServerError)
    assert (json_end.status_code, json_end.code) == (504, "upstream_timeout")
    for end in stream_ends:
        assert isinstance(end, openai.APIConnectionError)
        assert CUT in str(end.__cause__)


async def test_clients_of_a_server_told_to_end_never_wait_beyond_deadline_and_grace(
    hurried: tuple[Gateway, Server], fleet: Fleet
) -> None:
    """After SIGTERM vLLM with default settings was seen to do either: keep the connections open
    and say nothing more, or exit within a second."""
    gateway, large = hurried
    [json_end, *stream_ends], took_s = await _ends_after(large.process.terminate, gateway, large)
    fleet.used_up(large)
    fleet.say(f"after SIGTERM to vLLM, {took_s:.1f} s: {json_end!r}, {stream_ends}")
    assert took_s < KNOWN_AFTER_S
    assert isinstance(json_end, openai.InternalServerError)
    silent = took_s > DEADLINE_S
    expected = (504, "upstream_timeout") if silent else (503, "upstream_unavailable")
    assert (json_end.status_code, json_end.code) == expected
    for end in stream_ends:  # no stream looks as if the model had ended it
        assert isinstance(end, openai.APIError)


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

        with pytest.raises(openai.APIError) as caught:
            await _rest(stream)
        assert time.monotonic() - killed < 5
        assert not isinstance(caught.value, openai.APIConnectionError), "cut, not told"
        assert caught.value.body["code"] == 500  # type: ignore[index]

        # Nothing of this one had been answered, so it was asked again of the other pool.
        assert (await not_begun).headers["x-forebay-served-by"] == "small"
        await gateway.until_async(lambda: _in_flight(gateway) == 0, "a slot is still taken")
        assert gateway.metric("forebay_cache_entries") == 0

        again = await client.chat.completions.with_raw_response.create(
            **CACHEABLE | {"max_tokens": 8}
        )
        assert again.headers["cache-status"] == "forebay; fwd=uri-miss"
        assert again.headers["x-forebay-served-by"] == "small"
    fleet.used_up(large)
