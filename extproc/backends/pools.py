"""The servers by pool: which are up, how busy they say they are, and please stop this request.

Holds no policy. An endpoint counts as up until a poll says otherwise; those of a pool that is
no vLLM are never polled.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import aiohttp

from extproc.backends.load import Load, Servers
from extproc.backends.replica import Replica
from extproc.backends.stop import Stops
from extproc.config import PoolConfig

_log = logging.getLogger(__name__)


def _nothing(*_: object) -> None:
    pass


class Backends:
    """The state is the watched replicas and the task that watches each, by URL; `_down` follows.

    `on_change` is called after a replica went up or down, `on_load` with its URL after each new
    Load. They run between two steps of a watch: they must be short, and never raise.
    """

    def __init__(
        self,
        on_change: Callable[[], None] = _nothing,
        on_load: Callable[[str], None] = _nothing,
    ) -> None:
        self._on_change = on_change
        self._on_load = on_load
        self._replicas: dict[str, Replica] = {}
        self._down: set[str] = set()
        self._suspects: dict[str, asyncio.TimerHandle] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._stops: Stops | None = None

    async def watch(self, pools: Mapping[str, PoolConfig]) -> None:
        """Watch the replicas of these pools from now on, and no others. Returns when each new one
        has been polled once and, if it is up, its Load has been read or could not be."""
        if self._session is None:
            self._session, self._stops = _polling_session(), Stops()
        urls = _vllm_replicas(pools.values())
        new = {
            url: Replica(url, self._session, self._see_change, self._on_load)
            for url in urls - self._replicas.keys()
        }
        self._replicas |= new
        for url, models in _models_by_replica(pools).items():
            self._replicas[url].expect(models)
        await asyncio.gather(*(replica.begin() for replica in new.values()))
        for url, replica in new.items():
            watch = self._watches[url] = asyncio.create_task(replica.watch(), name=url)
            watch.add_done_callback(_tell_of_failure)
        for url in self._replicas.keys() - urls:
            self._watches.pop(url).cancel()
            del self._replicas[url]
            self._down.discard(url)
            if timer := self._suspects.pop(url, None):
                timer.cancel()

    async def close(self) -> None:
        for timer in self._suspects.values():
            timer.cancel()
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)
        if self._session and self._stops:
            await self._stops.close()
            await self._session.close()

    def is_up(self, pool: PoolConfig) -> bool:
        """Whether any replica of the pool answers. A pool without endpoints counts as up."""
        down = self._down
        for url in pool.endpoints:
            if url not in down:
                return True
        return not pool.endpoints

    def replicas_up(self, pool: PoolConfig) -> int:
        """How many of the pool's endpoints answer: 0 to `len(pool.endpoints)`."""
        return sum(url not in self._down for url in pool.endpoints)

    def endpoint(self, pool: PoolConfig) -> str | None:
        """Any of the pool's endpoints that answer; None: there is none."""
        up = [url for url in pool.endpoints if url not in self._down]
        return random.choice(up) if up else None

    def suspect(self, url: str, seconds: float) -> None:
        """Count this replica as down for so long, whatever its polls say: its answers were bad."""
        if url not in self._replicas or url in self._suspects:
            return
        _log.warning("backend %s is left alone for %g s: its last answers were bad", url, seconds)
        loop = asyncio.get_running_loop()
        self._suspects[url] = loop.call_later(seconds, self._trust, url)
        self._see_change()

    def _trust(self, url: str) -> None:
        del self._suspects[url]
        self._see_change()

    def _see_change(self) -> None:
        down = {url for url, replica in self._replicas.items() if replica.up is False}
        self._down = down | self._suspects.keys()
        self._on_change()

    def loads(self, pool: PoolConfig) -> dict[str, Load]:
        """By URL, the last known Load of each replica that has one, however old it is."""
        replicas = {url: self._replicas.get(url) for url in pool.endpoints}
        return {url: it.load for url, it in replicas.items() if it and it.load}

    def servers(self, pool: PoolConfig) -> Servers:
        """What is known of the pool's replicas now."""
        up, replicas = self.replicas_up(pool), len(pool.endpoints)
        loads = self.loads(pool).values()
        if not loads:
            return Servers(up, replicas, None, None, None)
        return Servers(
            up,
            replicas,
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads),
            scrape_age_s=asyncio.get_running_loop().time() - min(load.at for load in loads),
        )

    def ask_to_stop(self, pools: Iterable[PoolConfig], request_ids: Sequence[str]) -> bool:
        """Ask every vllm replica of these pools to end these requests, well-formed, now. Whether
        there is any.

        Which replica has the request is not known here; an unknown id does nothing there.
        """
        urls = _vllm_replicas(pools)
        if urls:
            assert self._stops, "watch comes first"
            self._stops.ask(urls, request_ids)
        return bool(urls)


def _polling_session() -> aiohttp.ClientSession:
    # No limit of connections: silent servers, with some each, must not keep the others' waiting.
    # Nothing is unpacked: what a server sends is what counts towards the limit of bytes.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


def _tell_of_failure(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and (error := watch.exception()):
        _log.error("backend %s is watched no more", watch.get_name(), exc_info=error)


def _vllm_replicas(pools: Iterable[PoolConfig]) -> set[str]:
    return {url for pool in pools if pool.server == "vllm" for url in pool.endpoints}


def _models_by_replica(pools: Mapping[str, PoolConfig]) -> dict[str, dict[str, str]]:
    """By URL: pool -> the model that it wants there."""
    models: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, pool in pools.items():
        for url in _vllm_replicas([pool]):
            models[url][name] = pool.model
    return models
