"""A running stack sees how busy its servers are, and which of them are gone, within two seconds."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import aiohttp
import pytest

from tests.e2e.client import CHAT, Gateway, chat
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
    gateway: Gateway,
    end: Callable[[Gateway], None],
    undo: Callable[[Gateway], None],
    limit_s: float,
) -> None:
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


async def test_after_a_restart_old_answers_keep_their_slots_until_they_end(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(
        policy={"pools": {"small": {"slots": 4}}, "admission": {"high_water": 9}},
        sim_args={"small": ("--max-num-seqs", "16", "--decode-ms", "50")},
    )
    old = [asyncio.create_task(gateway.ask(chat(max_tokens=100))) for _ in range(3)]
    await gateway.until_async(lambda: gateway.running("small") == 3, "not running")
    gateway.stack.kill("processor")
    gateway.stack.respawn("processor")
    status = gateway.status("small")
    assert (status["in_flight"], status["inherited"]) == (0, 3)
    most = 0.0
    new = [asyncio.create_task(gateway.ask(chat(max_tokens=20))) for _ in range(4)]
    while not all(task.done() for task in old):
        most = max(most, await asyncio.to_thread(gateway.running, "small"))
        await asyncio.sleep(0.02)
    assert most == 4
    assert [answer.status for answer in await asyncio.gather(*old, *new)] == [200] * 7
    gateway.wait_until_idle()
    gateway.until(lambda: gateway.status("small")["inherited"] == 0, "still taken")


async def test_what_others_have_waiting_in_the_servers_sheds_here(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(
        policy={
            "pools": {"small": {"slots": 4}},
            "admission": {"high_water": 3, "on_overload": ["shed"]},
        },
        sim_args={"small": ("--max-num-seqs", "2", "--decode-ms", "50")},
    )
    url = gateway.stack.config.backend_urls["small"]
    others = [
        asyncio.create_task(_ask_directly(url, chat(max_tokens=60) | {"model": "small-7b"}))
        for _ in range(7)
    ]
    await gateway.until_async(lambda: gateway.status("small")["queue_depth"] == 5, "not seen")
    assert gateway.status("small")["in_flight"] == 0
    assert (await gateway.ask(chat(max_tokens=1))).code == "overloaded"
    await asyncio.gather(*others)
    await gateway.until_async(lambda: gateway.status("small")["queue_depth"] == 0, "still there")
    assert (await gateway.ask(chat(max_tokens=1))).status == 200


async def _ask_directly(url: str, body: dict[str, object]) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{url}{CHAT}", json=body) as got:
        assert got.status == 200
        await got.read()


async def test_each_replica_brings_its_slots(make_gateway: MakeGateway) -> None:
    first = make_gateway(policy={"pools": {"large": {"model": "small-7b"}}})
    pool = first.stack.config.backend_urls
    gateway = make_gateway(
        policy={"pools": {"small": {"slots": 3}}},
        backends={"small": (pool["small"], pool["large"]), "large": (pool["large"],)},
    )
    assert gateway.status("small")["slots"] == 6
    first.stack.kill("small")
    gone = time.monotonic()
    await gateway.until_async(lambda: gateway.status("small")["slots"] == 3, "still counted")
    assert time.monotonic() - gone < 2
    first.stack.respawn("small")
    await gateway.until_async(lambda: gateway.status("small")["slots"] == 6, "not counted again")
