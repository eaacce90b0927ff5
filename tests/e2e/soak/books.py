"""Reads what processor, Envoy and servers say of themselves, many times a second, and checks it.

Must never change anything; what is wrong is noted once and ends the soak.
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable

import aiohttp

from tests.e2e.soak.times import Times

_EVERY_S = 0.08
_ANSWER_WITHIN_S = 5.0
# The replicas of a pool are not read at one moment, and one that Envoy has left may not know it
# yet: what they say together may be too much for a moment.
_READINGS = 3

Samples = dict[str, float]


class Books:
    """`ceilings`: max_requests of each pool's cluster. `servers`: the URLs of each pool's servers.
    `life`: which process the processor is now. `slots`: the most that all pools have together.
    `cut_s`: deadline + grace.

    The state is the last samples of the processor's present life, and the highest numbers seen.
    """

    def __init__(
        self,
        life: Callable[[], int],
        admin_url: str,
        envoy_url: str,
        servers: dict[str, list[str]],
        ceilings: dict[str, int],
        slots: int,
        cut_s: float,
        times: Times,
    ) -> None:
        self._slots, self._cut_s = slots, cut_s
        self._life = life
        self._admin_url, self._envoy_url = admin_url, envoy_url
        self._servers, self._ceilings, self._times = servers, ceilings, times
        self.wrong: list[str] = []
        self.readings = 0
        self.most: dict[str, float] = defaultdict(float)
        self._of_lives: dict[int, Samples] = {}
        self._above: dict[str, int] = defaultdict(int)

    def total(self, line_start: str) -> float:
        """Of a counter, over all lives of the processor as far as they were read."""
        return sum(
            value
            for samples in self._of_lives.values()
            for line, value in samples.items()
            if line.startswith(line_start)
        )

    async def keep(self) -> None:
        """Until cancelled, or something is wrong."""
        limit = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
        async with aiohttp.ClientSession(timeout=limit) as session:
            while not self.wrong:
                await asyncio.gather(
                    self._read_processor(session),
                    self._read_envoy(session),
                    *(self._read_servers(session, pool) for pool in self._servers),
                )
                self.readings += 1
                await asyncio.sleep(_EVERY_S)

    def _note(self, what: str) -> None:
        self.wrong.append(f"at {time.strftime('%X')}: {what}")

    def _saw(self, what: str, value: float) -> None:
        self.most[what] = max(self.most[what], value)

    # --- the processor ----------------------------------------------------------------------------

    async def _read_processor(self, session: aiohttp.ClientSession) -> None:
        life, asked_at = self._life(), time.monotonic()
        try:
            text = await _get(session, f"{self._admin_url}/metrics")
        except (aiohttp.ClientError, TimeoutError) as error:
            if not self._times.processor_was_gone(asked_at, time.monotonic()):
                self._note(f"the processor does not answer: {error!r}")
            return
        if life != self._life():
            return  # of which life it told is not certain
        now = dict(_samples(text))
        before = self._of_lives.get(life, {})
        for line, value in now.items():
            if value < 0:
                self._note(f"{line} is {value}")
            if _COUNTER.search(line) and value < before.get(line, 0):
                self._note(f"{line} fell from {before[line]} to {value}")
            if line.startswith("forebay_leaked_leases") and value != 0:
                self._note(f"{line} is {value}")
        for pool in self._servers:
            self._check_ledger(pool, now, before)
        self._of_lives[life] = now

    def _check_ledger(self, pool: str, now: Samples, before: Samples) -> None:
        """Never more in flight than slots. When a reload takes slots away, what holds them goes on
        but nothing is added: what was above the new number can only fall."""
        held, slots = (f'forebay_{name}{{pool="{pool}"}}' for name in ("in_flight", "slots"))
        most = max(now[slots], before.get(slots, 0), before.get(held, 0))
        if now[held] > most:
            self._note(f"{held} is {now[held]}, of {now[slots]} slots ({most} before)")
        self._saw(f"{pool}: in flight", now[held])
        self._saw(f"{pool}: queue depth", now[f'forebay_queue_depth{{pool="{pool}"}}'])

    # --- Envoy and the servers --------------------------------------------------------------------

    async def _read_envoy(self, session: aiohttp.ClientSession) -> None:
        names = "|".join(self._servers)
        which = rf"^cluster\.({names})\.upstream_rq_active(_overflow)?$"
        try:
            text = await _get(session, f"{self._envoy_url}/stats", {"filter": which})
        except (aiohttp.ClientError, TimeoutError) as error:
            self._note(f"Envoy does not answer: {error!r}")
            return
        together = 0
        for line in text.splitlines():
            name, _, value = line.partition(": ")
            _, pool, what = name.split(".")
            together += int(value) if what == "upstream_rq_active" else 0
            if what == "upstream_rq_active" and int(value) > self._ceilings[pool]:
                self._note(f"{line}, above the ceiling of {self._ceilings[pool]}")
            words = {"upstream_rq_active": "active in Envoy"}.get(what, "refused at the ceiling")
            self._saw(f"{pool}: {words}", int(value))
        # What Envoy carries has a slot, though a later tier may serve it in another pool. Only what
        # a processor let in that is gone has none.
        now = time.monotonic()
        if together > self._slots and not self._times.processor_was_gone(now - self._cut_s, now):
            self._note(f"{together} requests in Envoy, of {self._slots} slots")

    async def _read_servers(self, session: aiohttp.ClientSession, pool: str) -> None:
        urls = self._servers[pool]
        counts = await asyncio.gather(*(self._open_requests(session, url) for url in urls))
        together = sum(counts)
        self._saw(f"{pool}: open in the servers", together)
        self._above[pool] = self._above[pool] + 1 if together > self._ceilings[pool] else 0
        if self._above[pool] >= _READINGS:
            self._note(f"{pool}: {together} requests in its servers, {_READINGS} times in a row")

    async def _open_requests(self, session: aiohttp.ClientSession, url: str) -> int:
        """Of a server that was killed: none."""
        try:
            async with session.delete(f"{url}/sim/requests") as answer:
                return (await answer.json())["open"]
        except (aiohttp.ClientError, TimeoutError):
            return 0


_COUNTER = re.compile(r"^\w+_(total|count|bucket)\b")


def _samples(text: str) -> list[tuple[str, float]]:
    lines = (line.rpartition(" ") for line in text.splitlines() if line[:1] != "#")
    return [(line, float(value)) for line, _, value in lines]


async def _get(
    session: aiohttp.ClientSession, url: str, query: dict[str, str] | None = None
) -> str:
    async with session.get(url, params=query) as answer:
        return await answer.text()
