"""A running stack sees how busy its servers are, and which of them are gone, within two seconds."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway


async def test_the_servers_own_counts_are_shown(gateway: Gateway) -> None:
    asking = [
        asyncio.create_task(gateway.ask(chat(model="small-7b", max_tokens=600))) for _ in range(3)
    ]
    running = 'forebay_server_requests{pool="small",state="running"}'
    await gateway.until_async(lambda: gateway.metric(running) == 3, "not seen in the metrics")
    status = gateway.status("small")
    assert (status["replicas_up"], status["replicas"]) == (1, 1)
    assert (status["servers"]["running"], status["servers"]["waiting"]) == (3, 0)
    assert 0 <= status["servers"]["scrape_age_s"] < 2
    assert [answer.status for answer in await asyncio.gather(*asking)] == [200] * 3
    await gateway.until_async(lambda: gateway.metric(running) == 0, "still seen")


@pytest.mark.parametrize(
    ("end", "undo", "limit_s"),
    [
        # Killed: it refuses connections, which the next poll meets.
        (lambda gateway: gateway.stack.kill("small"), lambda g: g.stack.respawn("small"), 1.0),
        # It stands still: connections are accepted, nothing is answered.
        (lambda g: _signal(g, signal.SIGSTOP), lambda g: _signal(g, signal.SIGCONT), 2.5),
    ],
    ids=["killed", "silent"],
)
def test_a_server_that_is_gone_leaves_the_replicas_in_time(
    make_gateway: MakeGateway,
    end: Callable[[Gateway], None],
    undo: Callable[[Gateway], None],
    limit_s: float,
) -> None:
    gateway = make_gateway()
    assert gateway.status("small")["replicas_up"] == 1
    end(gateway)
    ended = time.monotonic()
    try:
        gateway.until(lambda: gateway.status("small")["replicas_up"] == 0, "still counted")
        assert time.monotonic() - ended < limit_s
        assert gateway.status("small")["servers"]["running"] is None
        assert gateway.metric('forebay_replicas_up{pool="small"}') == 0
    finally:
        undo(gateway)
    gateway.until(lambda: gateway.status("small")["replicas_up"] == 1, "not counted again")
    gateway.until(lambda: gateway.status("small")["servers"]["running"] == 0, "says nothing")


def _signal(gateway: Gateway, signum: signal.Signals) -> None:
    os.kill(gateway.stack.pid("small"), signum)
