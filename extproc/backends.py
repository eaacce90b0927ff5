"""The model servers, seen from the side: are they up, and please stop this request.

Requests never pass through here. Every call has a time limit; a server that does not answer is down
(health) or is left to Envoy's own cut (stop).
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import aiohttp

from extproc.config import PoolConfig

_log = logging.getLogger(__name__)

_POLL_EVERY_S = 0.5
_POLL_LIMIT_S = 1.0
_SILENT_POLLS = 3
_STOP_LIMIT_S = 1.0


class Backends:
    """Owns one HTTP session, one poll task for each replica, and the stop calls under way.

    The state is the polls, by replica, and which of these replicas are up.
    """

    def __init__(self) -> None:
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._up: set[str] = set()
        self._stops: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._stop_session: aiohttp.ClientSession | None = None  # many stops must not delay polls

    async def watch(self, pools: Iterable[PoolConfig]) -> None:
        """Poll the replicas of these pools from now on, and no others. Returns when each new one
        has been polled once."""
        if self._session is None:
            self._session, self._stop_session = _session(), _session()
        urls = _vllm_replicas(pools)
        for url in self._polls.keys() - urls:
            self._polls.pop(url).cancel()
            self._up.discard(url)
        new = urls - self._polls.keys()
        for url, healthy in zip(new, await asyncio.gather(*map(self._healthy, new)), strict=True):
            if healthy is not False:
                self._up.add(url)
            self._polls[url] = asyncio.create_task(self._poll(url))

    async def close(self) -> None:
        tasks = [*self._polls.values(), *self._stops]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in (self._session, self._stop_session):
            if session is not None:
                await session.close()

    def is_up(self, pool: PoolConfig) -> bool:
        """Whether any replica of the pool answers. A pool that is not polled counts as up."""
        up = self._up
        for url in pool.endpoints:
            if url in up:
                return True
        return self._polls.keys().isdisjoint(pool.endpoints)

    def ask_to_stop(self, pools: Iterable[PoolConfig], request_ids: Sequence[str]) -> bool:
        """Ask every vllm replica of these pools to end these requests, well-formed, now. Whether
        there is any.

        Which replica has the request is not known here; an unknown id does nothing there.
        """
        urls = _vllm_replicas(pools)
        for url in urls:
            task = asyncio.create_task(self._stop(url, request_ids))
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)
        return bool(urls)

    async def _poll(self, url: str) -> None:
        silent = 0
        while True:
            await asyncio.sleep(_POLL_EVERY_S)
            healthy = await self._healthy(url)
            silent = silent + 1 if healthy is None else 0
            if healthy is not None or silent >= _SILENT_POLLS:
                self._set_up(url, bool(healthy))

    async def _healthy(self, url: str) -> bool | None:
        """None: no answer in time. A busy server may be slow to answer; a dead one refuses."""
        assert self._session
        limit = aiohttp.ClientTimeout(total=_POLL_LIMIT_S)
        try:
            async with self._session.get(f"{url}/health", timeout=limit) as answer:
                return answer.status == 200
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError, ValueError):  # ValueError: a host that cannot be
            return False

    def _set_up(self, url: str, up: bool) -> None:
        if up != (url in self._up):
            _log.log(
                logging.INFO if up else logging.WARNING,
                "backend %s is %s",
                url,
                "up" if up else "down",
            )
        (self._up.add if up else self._up.discard)(url)

    async def _stop(self, url: str, request_ids: Sequence[str]) -> None:
        assert self._stop_session
        try:
            async with self._stop_session.post(
                f"{url}/inference/v1/abort_requests",
                json={"request_ids": list(request_ids)},
                timeout=aiohttp.ClientTimeout(total=_STOP_LIMIT_S),
            ) as answer:
                if answer.status != 200:
                    _log.warning(
                        "backend %s refused to stop a request: status %d (does it run with "
                        "--enable-scale-out?)",
                        url,
                        answer.status,
                    )
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            _log.warning("backend %s: asking it to stop failed: %s", url, type(error).__name__)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())


def _vllm_replicas(pools: Iterable[PoolConfig]) -> set[str]:
    return {url for pool in pools if pool.server == "vllm" for url in pool.endpoints}
