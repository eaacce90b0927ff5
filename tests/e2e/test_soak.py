"""Thousands of exchanges while all around them fails: no slot is lost, none is given twice.

A sample in `make test`; 20,000 in `make soak` (FOREBAY_SOAK_EXCHANGES). FOREBAY_SOAK_SEED repeats
the draws of a run, though not its timing.
"""

import json
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extproc.up import Child, free_port
from tests.e2e.client import Gateway
from tests.e2e.soak.books import Books
from tests.e2e.soak.clients import Clients
from tests.e2e.soak.times import Times
from tests.e2e.soak.weather import EVENTS, Weather
from tests.gateways import MakeGateway

EXCHANGES = int(os.environ.get("FOREBAY_SOAK_EXCHANGES", "600"))
SEED = int(os.environ.get("FOREBAY_SOAK_SEED") or secrets.randbelow(10**6))
AT_ONCE = 48
SEASON_EXCHANGES = 600
TELL_EVERY = 2000
REPLICAS = 2
SLOTS = {"small": 6, "large": 3}  # of each server
# Of each cluster's max_requests: a little above the slots. Fallback, and what an ended processor
# had let in, would go beyond.
CEILINGS = {"small": 13, "large": 7}
DEADLINE_S, GRACE_S = 2.0, 0.5
IDLE_WITHIN_S = DEADLINE_S + GRACE_S + 3.0

# Each must have happened, or the soak has not soaked: beginnings of what is counted.
HAPPENED = [
    "200: json",
    "200: stream",
    "200: json, deadline",
    "200: stream, deadline",
    "200: from the cache",
    "400: ",
    "429: overloaded",
    "429: queue_timeout",
    "503: gateway_unavailable",
    "cut: ",
    "left: mid-body",
    "left: mid-answer",
    "left: in the queue",
    "config: taken",
    "processor killed",
    "processor restarted",
    "server killed",
    "retried: 200 after",
]
RARE = [
    "200: stream, deadline (guard)",
    "503: upstream_unavailable",
    "refused at the ceiling",
    "config: refused",  # a bad file may come while no processor is there to see it
]
LONG = 5000  # in so many exchanges the rare ones must happen too


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, list[Child]]]:
    """Simulated vLLMs, two for each pool. 10 ms a token: a long answer meets the deadline."""
    children: dict[str, list[Child]] = {}
    try:
        for pool, model in (("small", "small-7b"), ("large", "large-70b")):
            for number in range(REPLICAS):
                port, name = free_port(), f"{pool}-{number}"
                command = (sys.executable, "-m", "extproc", "sim", "--port", str(port))
                command += ("--model", model, "--max-num-seqs", str(SLOTS[pool]))
                command += ("--decode-ms", "10", "--prefill-ms", "10")
                url = f"http://127.0.0.1:{port}/health"
                child = Child(name, command, tmp_path / f"{name}.log", url)
                child.start()
                children.setdefault(pool, []).append(child)
        for child in (child for pool in children.values() for child in pool):
            child.wait_until_healthy(lambda: None)
        yield children
    finally:
        for pool in children.values():
            for child in pool:
                child.stop()


def _low_ceilings(document: Any) -> None:
    for cluster in document["static_resources"]["clusters"]:
        if most := CEILINGS.get(cluster["name"]):
            limits = dict(cluster["circuit_breakers"]["thresholds"][0])
            cluster["circuit_breakers"] = {"thresholds": [limits | {"max_requests": most}]}


@pytest.mark.timeout(3600)
def test_whatever_happens_no_slot_is_lost_and_none_given_twice(
    make_gateway: MakeGateway,
    servers: dict[str, list[Child]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def say(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)

    say(f"\nsoak: {EXCHANGES} exchanges, FOREBAY_SOAK_SEED={SEED}")
    urls = {
        pool: [child.health_url.removesuffix("/health") for child in children]
        for pool, children in servers.items()
    }
    gateway = make_gateway(
        policy={
            "pools": {pool: {"slots": slots} for pool, slots in SLOTS.items()},
            "admission": {"max_wait": "500ms", "high_water": 6, "low_water": 1},
            "response": {"deadline": f"{DEADLINE_S}s", "grace": f"{GRACE_S}s"},
            "tenants": {"nightly": {"class": "batch"}},
        },
        edit=_low_ceilings,
        backends={pool: tuple(of_pool) for pool, of_pool in urls.items()},
    )
    times = Times()
    made = gateway.stack.config
    books = Books(
        lambda: gateway.stack.pid("processor"),
        made.admin_url,
        made.envoy_admin_url,
        urls,
        CEILINGS,
        REPLICAS * sum(SLOTS.values()),
        DEADLINE_S + GRACE_S,
        times,
    )
    weather = Weather(random.Random(SEED), gateway, servers, SLOTS, times)
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    clients = Clients(
        address=(host, int(port)),
        seed=SEED,
        at_once=AT_ONCE,
        cut_s=DEADLINE_S + GRACE_S,
        times=times,
        books=books,
    )
    log = gateway.stack.folder / "processor.log"

    def outcomes_so_far() -> Counter[str]:
        return _outcomes(clients, weather, books, log)

    _soak(clients, weather, say, lambda: not _missing(outcomes_so_far()))
    outcomes = outcomes_so_far()
    for name, count in sorted(outcomes.items()):
        say(f"  {count:6}  {name}")
    say(f"  highest of {books.readings} readings: {dict(sorted(books.most.items()))}")

    assert not clients.wrong, "\n".join(clients.wrong)
    assert not books.wrong, "\n".join(books.wrong)
    _becomes_idle(gateway, urls)
    time.sleep(0.5)  # lines are written ten times a second
    assert _complaints(log) == []
    assert _missing(outcomes) == [], "these never happened"


def _missing(outcomes: Counter[str]) -> list[str]:
    wanted = HAPPENED + (RARE if EXCHANGES >= LONG else [])
    return [one for one in wanted if not any(name.startswith(one) for name in outcomes)]


def _soak(
    clients: Clients,
    weather: Weather,
    say: Callable[[str], None],
    all_happened: Callable[[], bool],
) -> None:
    """The clients run in a thread; here the weather changes as they get on. It goes on, up to twice
    as long, until all has happened."""
    began = time.monotonic()
    told = changes = 0
    thread = clients.start()
    try:
        while thread.is_alive() and clients.done < 2 * EXCHANGES:
            if clients.done >= EXCHANGES and all_happened():
                break
            if clients.done >= changes * SEASON_EXCHANGES / EVENTS and not clients.failed:
                weather.change()
                changes += 1
            if clients.done >= told + TELL_EVERY:
                told = clients.done
                say(f"  {told:6} exchanges in {time.monotonic() - began:.0f} s")
            time.sleep(0.05)
    finally:
        clients.stopping = True
        thread.join()
    weather.calm()
    say(f"  {clients.done:6} exchanges in {time.monotonic() - began:.0f} s:")


def _becomes_idle(gateway: Gateway, urls: dict[str, list[str]]) -> None:
    def idle() -> bool:
        pools = [gateway.status(pool) for pool in urls]
        held = [
            pool[name]
            for pool in pools
            for name in ("in_flight", "queue_depth", "batch_waiting", "queue_bytes")
        ]
        for url in (url for of_pool in urls.values() for url in of_pool):
            held.append(json.loads(gateway.get(f"{url}/sim/requests", "DELETE"))["open"])
            for line in gateway.get(f"{url}/metrics").decode().splitlines():
                if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting")):
                    held.append(float(line.rpartition(" ")[2]))
        return not any(held)

    gateway.until(idle, "a slot or a server is still taken", limit_s=IDLE_WITHIN_S)
    assert gateway.metric("forebay_leaked_leases") == 0


def _outcomes(clients: Clients, weather: Weather, books: Books, log: Path) -> Counter[str]:
    outcomes = clients.outcomes + weather.seen
    for result in ("taken", "refused"):
        name = f'forebay_config_reloads_total{{result="{result}"}}'
        outcomes[f"config: {result}"] = int(books.total(name))
    outcomes["stopped"] = int(books.total("forebay_stopped_total"))
    outcomes["asked to stop"] = int(books.total("forebay_asked_to_stop_total"))
    for what, most in books.most.items():
        if what.endswith("refused at the ceiling"):
            outcomes["refused at the ceiling"] += int(most)
    for kind, count in clients.tries.items():
        outcomes[f"retried: {kind}"] = count
    for line in _lines(log):
        # The cache is asked after the body has come, and what follows is the queue.
        if line.get("decision") == "client_gone" and "cache" in line:
            outcomes["left: in the queue"] += 1
    return +outcomes


def _complaints(log: Path) -> list[str]:
    """Lines that are no plain news: errors, and what was never meant to be logged."""
    return [
        str(line)
        for line in _lines(log)
        if line.get("level") not in ("info", "warning")
        and not str(line.get("message")).startswith("config refused")
    ]


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    for text in log.read_text(errors="replace").splitlines():
        try:
            yield json.loads(text)
        except ValueError:  # half a line of a killed processor, or a traceback
            yield {"level": "no JSON", "message": text}
