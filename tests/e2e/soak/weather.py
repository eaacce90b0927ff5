"""What goes wrong around the exchanges of the soak: faults, dead servers, new configs, restarts.

A season has each kind of event, in an order drawn from the seed. Blocks while it makes one.
"""

import copy
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import yaml

from extproc.up import Child
from tests.e2e.client import Gateway
from tests.e2e.soak.times import Times

_SEASON = {
    "faults": 8,
    "calm": 3,
    "reload": 5,
    "bad config": 1,
    "processor killed": 1,
    "processor restarted": 1,
    "server killed": 1,
}
EVENTS = sum(_SEASON.values())
_CUTTING = {"reset_after", "stall_after"}


class Weather:
    """`servers`: the processes behind each pool. `most_slots`: of a server of each pool."""

    def __init__(
        self,
        draw: random.Random,
        gateway: Gateway,
        servers: dict[str, list[Child]],
        most_slots: dict[str, int],
        times: Times,
    ) -> None:
        self._draw, self._gateway, self._times = draw, gateway, times
        self._servers = [server for pool in servers.values() for server in pool]
        self._most_slots = most_slots
        self._path = gateway.stack.folder / "envoy.yaml"
        self._document: Any = yaml.safe_load(self._path.read_text())
        self._season: list[str] = []
        self.seen: Counter[str] = Counter()

    def change(self) -> None:
        """The next event."""
        if not self._season:
            self._season = [kind for kind, count in _SEASON.items() for _ in range(count)]
            self._draw.shuffle(self._season)
        kind = self._season.pop()
        make: dict[str, Callable[[], None]] = {
            "faults": self._faults,
            "calm": self.calm,
            "reload": self._reload,
            "bad config": self._bad_config,
            "processor killed": self._kill_processor,
            "processor restarted": self._restart_processor,
            "server killed": self._kill_server,
        }
        make[kind]()
        self.seen[kind] += 1

    def calm(self) -> None:
        """All servers behave."""
        for server in self._servers:
            self._set_faults(server, {})

    # --- the servers ------------------------------------------------------------------------------

    def _faults(self) -> None:
        draw = self._draw
        share = {"probability": draw.uniform(0.1, 0.6)}
        kinds = {
            "latency_ms": {"value": draw.choice([50, 300, 900]), **share},
            "status": {"value": draw.choice([429, 500, 503]), **share},
            "reset_before": {"value": True, **share},
            "reset_after": {"value": draw.randint(0, 10), **share},
            "stall_after": {"value": draw.randint(0, 10), **share},
            "error_event_after": {"value": draw.randint(0, 10), **share},
            "ignore_aborts": {"value": True, **share},
        }
        chosen = draw.sample(list(kinds), draw.randint(1, 2))
        for server in draw.sample(self._servers, draw.randint(1, 3)):
            self._set_faults(server, {kind: kinds[kind] for kind in chosen})

    def _set_faults(self, server: Child, faults: dict[str, Any]) -> None:
        if faults.keys() & _CUTTING:
            self._times.cutting(server.name)
        url = server.health_url.removesuffix("/health")
        Gateway.get(f"{url}/sim/faults", "POST", json.dumps(faults).encode())
        if not faults.keys() & _CUTTING:
            self._times.mended(server.name)

    def _kill_server(self) -> None:
        """It comes back without faults."""
        server = self._draw.choice(self._servers)
        self._times.cutting(server.name)
        server.process.kill()
        server.process.wait()
        time.sleep(self._draw.uniform(0, 1.0))
        server.start()
        server.wait_until_healthy(lambda: None)
        self._times.mended(server.name)

    # --- the config -------------------------------------------------------------------------------

    def _reload(self) -> None:
        draw = self._draw
        document = copy.deepcopy(self._document)
        policy = document["node"]["metadata"]["forebay"]
        for pool, most in self._most_slots.items():
            policy["pools"][pool]["slots"] = draw.randint(most // 2, most)
        policy["pools"]["large"]["partial_by"] = draw.choice(["ask", "ask", "guard"])
        admission = policy["admission"]
        admission["high_water"] = draw.choice(["auto", draw.randint(0, 8)])
        admission["low_water"] = draw.choice(["auto", 0])
        admission["on_overload"] = draw.choice(
            [["cached", "smaller", "shed"], ["smaller", "shed"], ["shorter", "shed"], ["shed"]]
        )
        admission["max_wait"] = draw.choice(["200ms", "500ms", "1s"])
        admission["batch"] = draw.choice(
            [
                {},
                {"when_needed": "stop", "spare": 0.0},
                {"when_needed": "stop", "max_wait": "2s"},
                {"spare": 0.5},
            ]
        )
        policy["response"]["cap_to_deadline"] = draw.random() < 0.3
        policy["tenants"] = {
            "default": {},
            "acme": {"weight": draw.choice([1, 2, 5])},
            "nightly": {"class": draw.choice(["batch", "interactive"])},
        }
        if draw.random() < 0.3:
            policy["cache"] = {"exact": None}
        self._write(document)

    def _bad_config(self) -> None:
        document = copy.deepcopy(self._document)
        document["node"]["metadata"]["forebay"]["pools"]["small"]["slots"] = "many"
        self._write(document)

    def _write(self, document: Any) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(yaml.safe_dump(document))
        os.replace(new, self._path)

    # --- the processor ----------------------------------------------------------------------------

    def _kill_processor(self) -> None:
        self._mend_config()
        with self._times.without_processor():
            self._gateway.stack.kill("processor")
            time.sleep(self._draw.uniform(0, 0.3))
            self._gateway.stack.respawn("processor")

    def _restart_processor(self) -> None:
        self._mend_config()
        with self._times.without_processor():
            self._gateway.stack.restart("processor")

    def _mend_config(self) -> None:
        """With a bad one it would not start."""
        self._reload()
