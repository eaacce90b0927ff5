"""The clients of `forebay bench limits`: an open loop over several gateways, in this process. Each
request goes to the next gateway, whether or not the last one was answered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

_LATE_S = 10.0
_BODY = {
    "model": "auto",
    "temperature": 1,  # not cached
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "is the sky blue?"}],
}


@dataclass
class Told:
    """Times are seconds since the first request was sent."""

    granted_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    """What else was answered, and how often."""
    lasted_s: float = 0.0
    """From the first request to the last one."""


async def offer(
    urls: list[str],
    key: str,
    *,
    per_s: float,
    seconds: float,
    events: list[tuple[float, Callable[[], Awaitable[None]]]],
    check: Callable[[], None],
) -> Told:
    """`events`: what happens meanwhile, and after how many seconds. `check` may raise."""
    told, tasks = Told(), set[asyncio.Task[None]]()
    clock = asyncio.get_running_loop().time
    limit = aiohttp.ClientTimeout(total=_LATE_S)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=limit, headers={"x-api-key": key}
    ) as session:
        began = clock()

        async def ask(url: str) -> None:
            try:
                async with session.post(f"{url}/v1/chat/completions", json=_BODY) as answer:
                    await answer.read()
                    what = str(answer.status)
            except (aiohttp.ClientError, TimeoutError) as error:
                what = type(error).__name__
            if what in ("200", "429"):
                (told.granted_s if what == "200" else told.refused_s).append(clock() - began)
            else:
                told.failed[what] = told.failed.get(what, 0) + 1

        async def happen(after_s: float, event: Callable[[], Awaitable[None]]) -> None:
            await asyncio.sleep(after_s)
            await event()

        happening = [asyncio.create_task(happen(*one)) for one in events]
        try:
            for number in range(round(per_s * seconds)):
                if (wait_s := began + number / per_s - clock()) > 0:
                    await asyncio.sleep(wait_s)
                told.lasted_s = clock() - began
                task = asyncio.create_task(ask(urls[number % len(urls)]))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                if number % 100 == 0:
                    check()
            await asyncio.gather(*tasks, *happening)
        finally:  # before the session is closed under those that still ask
            left = (*tasks, *happening)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
    return told
