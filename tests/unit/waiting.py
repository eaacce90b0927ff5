"""Waiting, for tests of what goes on in the background."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], within_s: float = 5) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - of a state nobody announces
            await asyncio.sleep(0.005)
