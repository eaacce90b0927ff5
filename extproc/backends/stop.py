"""Asking servers to end requests early.

A call is made once, in the background, with a time limit; what a server does not end, Envoy cuts.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import aiohttp

_log = logging.getLogger(__name__)

_LIMIT_S = 1.0


class Stops:
    """Owns the calls under way, and a session of its own: many of them must not delay polls."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, urls: Iterable[str], request_ids: Sequence[str]) -> None:
        for url in urls:
            task = asyncio.create_task(self._ask(url, request_ids))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _ask(self, url: str, request_ids: Sequence[str]) -> None:
        try:
            async with self._session.post(
                f"{url}/inference/v1/abort_requests",
                json={"request_ids": list(request_ids)},
                timeout=aiohttp.ClientTimeout(total=_LIMIT_S),
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
