"""A real Prometheus with the production config and rules watches real Envoy: while load grows past
what a pool can serve, and while nothing is wrong."""

import asyncio
import json
import random
import re
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from extproc.up import Child, free_port
from tests.e2e.client import CHAT, Gateway, chat
from tests.gateways import REFERENCE, MakeGateway
from tests.tools import NO_PROMETHEUS, tool

PRODUCTION = REFERENCE.parents[1] / "compose" / "prometheus"

# Time runs ten times as fast as in production: every duration in Prometheus' config and rules is
# divided by this (scrapes every 0.5 s instead of 5 s), and five minutes of ramp half a minute.
FASTER = 10
DURATION = re.compile(r"(?<=\[)\d+[sm](?=\])|(?<=for: )\d+[sm]$|(?<=interval: )\d+[sm]$", re.M)

SLO_S = 1.0  # of the TTFT: the rules' and the reference config's

# Eight slots, held 0.4 s each by 20 tokens of 20 ms: 20 answers a second. The high mark is set by
# hand and much too high, so that waits can be far above the SLO: `auto` would hold it.
CAPACITY_PER_S = 20
POLICY = {
    "pools": {"small": {"slots": 8}},
    "admission": {"high_water": 100, "low_water": 50, "max_wait": "9s", "on_overload": ["shed"]},
    "routing": {"fallback": {}},
}
SLOW = ("--decode-ms", "20", "--prefill-ms", "0")
RAMP_S = 32.0
FROM_LOAD, TO_LOAD = 0.5, 1.3


@dataclass
class Seen:
    """When what was seen, in seconds of the ramp."""

    firing_s: dict[str, float] = field(default_factory=dict)
    """The alerts that fire, and since when without a break."""
    p99_at_alert_s: float | None = None
    """The TTFT's p99, as Prometheus has it, when the queue's alert began to fire."""
    late_s: float | None = None
    """That p99 is above its SLO."""


pytestmark = pytest.mark.skipif(not tool("prometheus"), reason=NO_PROMETHEUS)


async def test_the_queue_alerts_before_ttft_leaves_its_slo(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    gateway = make_gateway(policy=POLICY, sim_args={"small": SLOW})
    with prometheus(gateway, tmp_path) as url:
        seen = Seen()
        begin = time.monotonic()
        load = asyncio.create_task(ramp(gateway, begin))
        try:
            await watch(url, seen, begin)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
    gateway.wait_until_idle()
    print(seen)

    assert seen.late_s is not None, f"TTFT never left its SLO: no overload; {seen}"
    assert seen.firing_s.get("ForebayQueueDeep", seen.late_s) < seen.late_s, seen
    assert seen.p99_at_alert_s is not None, "nothing was known of the TTFT when the alert fired"
    assert seen.p99_at_alert_s <= SLO_S
    assert seen.firing_s.keys() == {"ForebayQueueDeep"}


async def test_in_a_normal_run_no_alert_fires_and_every_panel_has_data(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    gateway = make_gateway()
    with prometheus(gateway, tmp_path) as url:
        for again in range(3):  # a counter's growth shows from its second scrape on
            for stream in (True, False):
                answers = [chat(f"Tell me {again} {i}", stream=stream) for i in range(5)]
                done = await asyncio.gather(*(gateway.ask(asked) for asked in answers))
                assert {answer.status for answer in done} == {200}
            await asyncio.sleep(1)
        dashboard = PRODUCTION.parent / "grafana" / "dashboards" / "forebay.json"
        empty = {
            panel["title"]
            for panel in json.loads(dashboard.read_text())["panels"]
            if panel["type"] != "row"
            and not any(
                series(url, target["expr"].replace("$__rate_interval", "5s"))
                for target in panel["targets"]
            )
            and "Empty" not in panel["description"]  # it says when
        }
        assert empty == set()
        assert "firing" not in alerts(url).values()


# --- the load -------------------------------------------------------------------------------------


async def ramp(gateway: Gateway, begin: float) -> None:
    """Poisson arrivals that wait for nobody, at a rate that grows evenly."""
    chance = random.Random(7)
    limit = aiohttp.ClientTimeout(total=30)
    async with (
        aiohttp.ClientSession(
            timeout=limit, connector=aiohttp.TCPConnector(limit=0), headers=gateway.headers
        ) as session,
        asyncio.TaskGroup() as clients,
    ):
        at_s = 0.0
        while at_s < RAMP_S:
            share = at_s / RAMP_S
            load = FROM_LOAD + (TO_LOAD - FROM_LOAD) * share
            at_s += chance.expovariate(load * CAPACITY_PER_S)
            await asyncio.sleep(begin + at_s - time.monotonic())
            clients.create_task(ask(session, gateway.url))


async def ask(session: aiohttp.ClientSession, url: str) -> None:
    body = chat("Tell me", max_tokens=20, stream=True)
    async with session.post(url + CHAT, json=body) as answer:
        await answer.read()


# --- Prometheus -----------------------------------------------------------------------------------


async def watch(url: str, seen: Seen, begin: float) -> None:
    """Until the TTFT's p99 is above its SLO, or the ramp is over."""
    rules: Any = yaml.safe_load(faster((PRODUCTION / "rules.yml").read_text()))
    [ttft_p99] = [
        rule["expr"]
        for group in rules["groups"]
        for rule in group["rules"]
        if rule.get("record") == "pool:forebay_ttft_seconds:p99_rate5m"
    ]
    while seen.late_s is None and (now_s := time.monotonic() - begin) < RAMP_S + 2:
        known_s = await asyncio.to_thread(series, url, ttft_p99)
        p99_s = known_s[0] if known_s else None  # of the small pool; nobody asks the large one
        states = await asyncio.to_thread(alerts, url)
        names = {name for name, state in states.items() if state == "firing"}
        if "ForebayQueueDeep" in names - seen.firing_s.keys():
            seen.p99_at_alert_s = p99_s
        seen.firing_s = {name: seen.firing_s.get(name, now_s) for name in names}
        if p99_s is not None and p99_s > SLO_S:
            seen.late_s = now_s
        await asyncio.sleep(0.25)


def alerts(url: str) -> dict[str, str]:
    """Those that are pending or firing."""
    found = json.loads(Gateway.get(f"{url}/api/v1/alerts"))["data"]["alerts"]
    return {alert["labels"]["alertname"]: alert["state"] for alert in found}


def series(url: str, query: str) -> list[float]:
    """The numbers that a query has now, without those that say nothing (0 / 0)."""
    asked = urllib.parse.urlencode({"query": query})
    result = json.loads(Gateway.get(f"{url}/api/v1/query?{asked}"))["data"]["result"]
    return [number for one in result if not isnan(number := float(one["value"][1]))]


@contextmanager
def prometheus(gateway: Gateway, folder: Path) -> Iterator[str]:
    """A running Prometheus with production's config, moved to this stack and its ports, and
    production's rules, faster. Its URL."""
    (folder / "prometheus.yml").write_text(yaml.safe_dump(moved(gateway)))
    (folder / "rules.yml").write_text(faster((PRODUCTION / "rules.yml").read_text()))
    url = f"http://127.0.0.1:{free_port()}"
    server = Child(
        "prometheus",
        (tool("prometheus"), "--config.file", str(folder / "prometheus.yml"))
        + ("--storage.tsdb.path", str(folder / "data"))
        + ("--web.listen-address", url.removeprefix("http://"), "--log.level", "warn"),
        folder / "prometheus.log",
        f"{url}/-/ready",
    )
    server.start()
    try:
        server.wait_until_healthy(lambda: None)
        gateway.until(
            lambda: series(url, "sum(up)") == [4.0], "not all four targets are scraped", limit_s=10
        )
        yield url
    finally:
        server.stop()


def moved(gateway: Gateway) -> Any:
    config: Any = yaml.safe_load(faster((PRODUCTION / "prometheus.yml").read_text()))
    here = gateway.stack.config
    for job in config["scrape_configs"]:
        for group in job["static_configs"]:
            pool = group.get("labels", {}).get("pool")
            urls = {"forebay": here.admin_url, "envoy": here.envoy_admin_url}
            url = here.backend_urls[pool] if pool else urls[job["job_name"]]
            group["targets"] = [url.removeprefix("http://")]
    return config


def faster(text: str) -> str:
    def shortened(found: re.Match[str]) -> str:
        unit_ms = {"s": 1_000, "m": 60_000}[found[0][-1]]
        return f"{int(found[0][:-1]) * unit_ms // FASTER}ms"

    return DURATION.sub(shortened, text)
