"""One server, watched: polled at /health, read at /metrics, asked for its models when it comes up.

Says what it saw to two callbacks. Must never wait for a server without a limit, and never take one
slow answer for a dead server, nor a missing one for an idle server.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping

import aiohttp

from extproc.backends.load import Load, NoLoad, read_load
from extproc.backends.served import not_served
from extproc.openai import MODELS, listed_models

_log = logging.getLogger(__name__)

POLL_EVERY_S = 0.5
POLL_LIMIT_S = 1.5
"""With the time between polls: the longest that a silent server counts as up, 2 s."""
SCRAPE_EVERY_S = 1.0
SCRAPE_LIMIT_S = 1.0
READ_LIMIT_BYTES = 1024 * 1024


class _Unread(Exception):
    """It answered, but with nothing to read; the message says with what."""


class Replica:
    """`up` is None until the first poll is over. `load` is the last that was read, however old;
    None before the first, and from when the server goes down: its work is gone."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        on_change: Callable[[], None],
        on_load: Callable[[str], None],
    ) -> None:
        self.up: bool | None = None
        self.load: Load | None = None
        self._url = url
        self._session = session
        self._on_change = on_change
        self._on_load = on_load
        self._clock = asyncio.get_running_loop().time
        self._answered = 0  # the number of the newest poll that was answered
        self._warned = False  # of a missing load, since the last that was read
        self._models: Mapping[str, str] = {}
        self._to_ask = asyncio.Event()  # which models it serves

    def expect(self, models: Mapping[str, str]) -> None:
        """What its pools are to find here: by pool, the model's name. Told before it is watched,
        and when the config has changed."""
        if models != self._models:
            self._models = models
            self._to_ask.set()

    async def begin(self) -> None:
        """The first poll and, if it is up, the first reading."""
        await self._poll(0)
        if self.up:
            await self._scrape()

    async def watch(self) -> None:
        """All others, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_scraping())
            tasks.create_task(self._keep_asking())
            for number in itertools.count(1):
                await asyncio.sleep(POLL_EVERY_S)
                # Not awaited: while one answer is late, the next ones may tell that it lives.
                tasks.create_task(self._poll(number))

    async def _poll(self, number: int) -> None:
        """Down if refused, or if neither this poll nor a later one is answered in time."""
        healthy = await self._healthy()
        if number < self._answered:
            return
        if healthy is not None:
            self._answered = number
        self._set_up(bool(healthy))

    async def _healthy(self) -> bool | None:
        """None: no answer in time. A busy server may be slow to answer; a dead one refuses."""
        limit = aiohttp.ClientTimeout(total=POLL_LIMIT_S)
        try:
            async with self._session.get(f"{self._url}/health", timeout=limit) as answer:
                return answer.status == 200
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError, ValueError):  # ValueError: a host that cannot be
            return False

    def _set_up(self, up: bool) -> None:
        if up == self.up:
            return
        self.up = up
        if up:
            self._to_ask.set()
        else:
            self.load = None
        _log.log(
            logging.INFO if up else logging.WARNING,
            "backend %s is %s",
            self._url,
            "up" if up else "down",
        )
        self._on_change()

    async def _keep_scraping(self) -> None:
        while True:
            await asyncio.sleep(SCRAPE_EVERY_S)
            if self.up:
                await self._scrape()

    async def _scrape(self) -> None:
        try:
            load = read_load(await self._read("/metrics", SCRAPE_LIMIT_S), self._clock())
        except TimeoutError:
            if self.load is None:  # else it is only late, and the load's age tells
                self._warn(f"no answer within {SCRAPE_LIMIT_S:g} s")
        except (_Unread, NoLoad) as error:
            self._warn(str(error))
        except (aiohttp.ClientError, OSError, ValueError):
            pass  # cut or refused: whether it is down is for the polls to say
        else:
            if self.up:  # still
                self.load = load
                self._warned = False
                self._on_load(self._url)

    async def _keep_asking(self) -> None:
        """Once each time that it comes up, or that its pools want other models of it."""
        while True:
            await self._to_ask.wait()
            self._to_ask.clear()
            if self.up:
                await self._ask_for_models()

    async def _ask_for_models(self) -> None:
        try:
            served = listed_models(await self._read(MODELS, POLL_LIMIT_S))
        except (_Unread, aiohttp.ClientError, OSError, ValueError):
            return  # it wants a key, or has no such list: that says nothing against the policy
        for pool, model in self._models.items():
            if said := not_served(self._url, pool, model, served):
                _log.warning("%s", said)

    async def _read(self, path: str, limit_s: float) -> bytes:
        text = bytearray()
        async with self._session.get(
            f"{self._url}{path}",
            headers={"Accept-Encoding": "identity"},  # packing costs the server's event loop more
            timeout=aiohttp.ClientTimeout(total=limit_s),
        ) as answer:
            if answer.status != 200:
                raise _Unread(f"status {answer.status}")
            async for piece in answer.content.iter_any():
                text += piece
                if len(text) > READ_LIMIT_BYTES:
                    raise _Unread(f"more than {READ_LIMIT_BYTES} bytes")
        return bytes(text)

    def _warn(self, why: str) -> None:
        if not self._warned:
            _log.warning("backend %s does not say how busy it is: /metrics: %s", self._url, why)
        self._warned = True
