"""So many clients at a time, until they are stopped or one sees what is wrong. In a thread.

The weather is made by the main thread meanwhile: a process dies with the thread that started it.
"""

import asyncio
import random
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.e2e.soak import exchanges
from tests.e2e.soak.books import Books
from tests.e2e.soak.times import Times
from tests.e2e.soak.wire import send

# What an exchange may take beyond the client's own delays, deadline, grace and cut.
_LATE_S = 6.0
_GONE = "503: gateway_unavailable"


@dataclass
class Clients:
    """`done` does not count those who found no processor: they are told to come back, and do."""

    address: tuple[str, int]
    seed: int
    at_once: int
    cut_s: float
    """Deadline + grace."""
    times: Times
    books: Books
    stopping: bool = False
    """Each ends the exchange that it is at, and begins no other."""
    done: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    """Answered after so many upstream attempts."""
    wrong: list[str] = field(default_factory=list)
    _begun: int = 0

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="clients")
        thread.start()
        return thread

    @property
    def failed(self) -> bool:
        return bool(self.wrong or self.books.wrong)

    async def _run(self) -> None:
        keeping = asyncio.create_task(self.books.keep())
        try:
            await asyncio.gather(*(self._client() for _ in range(self.at_once)))
        except Exception:  # of the soak itself
            self.wrong.append(traceback.format_exc())
        finally:
            keeping.cancel()
            await asyncio.wait((keeping,))

    async def _client(self) -> None:
        while not self.stopping and not self.failed:
            number, self._begun = self._begun, self._begun + 1
            draw = random.Random(f"{self.seed} {number}")
            exchange = exchanges.make(draw)
            outcome = await self._exchange(number, exchange)
            self.outcomes[outcome] += 1
            if outcome != _GONE:
                self.done += 1
                self.kinds[exchange.kind] += 1
            if outcome.startswith("503"):
                await asyncio.sleep(1 + draw.random() / 2)
            elif outcome.startswith("429"):
                await asyncio.sleep(0.3 + 1.5 * draw.random())  # not as long as it is told

    async def _exchange(self, number: int, exchange: exchanges.Exchange) -> str:
        request = exchange.request
        limit_s = self.cut_s + request.pause_s + request.reads_after_s + _LATE_S
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                got = await send(self.address, request)
        except TimeoutError:
            outcome = f"no end within {limit_s:.1f} s"
            self.wrong.append(f"exchange {number}, {exchange}: {outcome}")
            return outcome
        try:
            outcome = exchanges.judge(
                exchange, got, began, time.monotonic(), self.cut_s, self.times
            )
        except exchanges.Wrong as why:
            self.wrong.append(f"exchange {number}, {exchange}: {why}; headers {got.headers}")
            return "wrong"
        if (attempts := got.headers.get("x-envoy-attempt-count", "1")) != "1":
            self.tries[f"{got.status} after {attempts} attempts"] += 1
        return outcome
