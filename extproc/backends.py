"""The model servers, seen from the side: are they up, and please stop this request.

Requests never pass through here. Every call has a time limit; a server that does not answer is down
(health) or is left to Envoy's own cut (stop).
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence

import aiohttp

from extproc.config import PoolConfig

_log = logging.getLogger(__name__)

_POLL_EVERY_S = 0.5
_POLL_LIMIT_S = 1.0
_SILENT_POLLS = 3
_STOP_LIMIT_S = 1.0


class Backends:
    """Owns one HTTP session, one poll task for each replica, and the stop calls under way.

    The state is two sets: the replicas polled, and those of them that are up.
    """

    def __init__(self, pools: dict[str, PoolConfig]) -> None:
        self._pools = pools
        self._up: set[str] = set()
        self._polled: set[str] = set()
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Polls each replica once before it returns, then goes on in the background."""
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        urls = {
            url for pool in self._pools.values() if pool.server == "vllm" for url in pool.endpoints
        }
        healthy = await asyncio.gather(*(self._healthy(url) for url in urls))
        for url, up in zip(urls, healthy, strict=True):
            self._set_up(url, bool(up))
            self._spawn(self._poll(url))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session:
            await self._session.close()

    def is_up(self, pool: str) -> bool:
        """Whether any replica of the pool answers. A pool that is not polled counts as up."""
        polled = self._polled.intersection(self._pools[pool].endpoints)
        return not polled or not polled.isdisjoint(self._up)

    def ask_to_stop(self, pools: Iterable[str], request_ids: Sequence[str]) -> None:
        """Ask every vllm replica of these pools to end these requests, well-formed, now.

        Which replica has the request is not known here; an unknown id does nothing there.
        """
        urls = {
            url
            for pool in pools
            if self._pools[pool].server == "vllm"
            for url in self._pools[pool].endpoints
        }
        for url in urls:
            self._spawn(self._stop(url, request_ids))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self, url: str) -> None:
        silent = 0
        while True:
            await asyncio.sleep(_POLL_EVERY_S)
            up = await self._healthy(url)
            silent = silent + 1 if up is None else 0
            if up is not None or silent >= _SILENT_POLLS:
                self._set_up(url, bool(up))

    async def _healthy(self, url: str) -> bool | None:
        """None: no answer in time. A busy server may be slow to answer; a dead one refuses."""
        assert self._session
        limit = aiohttp.ClientTimeout(total=_POLL_LIMIT_S)
        try:
            async with self._session.get(f"{url}/health", timeout=limit) as answer:
                return answer.status == 200
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError):
            return False

    def _set_up(self, url: str, up: bool) -> None:
        if url in self._polled and up != (url in self._up):
            _log.warning("backend %s is %s", url, "up" if up else "down")
        self._polled.add(url)
        (self._up.add if up else self._up.discard)(url)

    async def _stop(self, url: str, request_ids: Sequence[str]) -> None:
        assert self._session
        try:
            async with self._session.post(
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
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.warning("backend %s: asking it to stop failed: %s", url, type(error).__name__)
