"""The slots of one pool and the queue before them.

All mutable state is two things: `_held`, how many slots are leased, and `_waiting`, the leases that
queue for one, oldest first. A lease is the only handle a request has: it is made by `enter`, and
`Lease.end` is the only place where a slot or a place in the queue is given back.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from extproc.admission.gate import Gate

# How much one observed service time moves the running mean: about the last 20 requests count.
_MEAN_WEIGHT = 0.1
# Before anything was measured: a guess that only feeds the first Retry-After values.
_FIRST_SERVICE_S = 1.0


class Shed(Exception):
    """The gate refused the request. `drain_s`: the estimated time until it opens, in seconds."""

    def __init__(self, drain_s: float) -> None:
        super().__init__(f"shedding; drains in about {drain_s:.1f} s")
        self.drain_s = drain_s


class Lease:
    """A request's place in a pool: queued, then holding its slots, then ended."""

    __slots__ = ("_granted", "_held", "_limiter", "_since", "state", "weight")

    def __init__(
        self, limiter: "Limiter", weight: int, granted: "asyncio.Future[None] | None"
    ) -> None:
        self.weight = weight
        self._limiter = limiter
        self._granted = granted
        self._held = 0
        self._since = limiter.clock()
        self.state: Literal["queued", "holding", "ended"] = "queued"

    @property
    def granted(self) -> "asyncio.Future[None]":
        """Resolves when a queued lease gets its slot. Waiting for it decides nothing: whoever
        stops waiting calls `end`, which gives back whatever the lease has by then."""
        assert self._granted is not None, "a lease that never queued has nothing to wait for"
        return self._granted

    def end(self) -> None:
        """Give back the slot or the place in the queue. Any call after the first does nothing."""
        state, self.state = self.state, "ended"
        if state == "holding":
            self._limiter._freed(self._held, self._limiter.clock() - self._since)  # pyright: ignore[reportPrivateUsage]
        elif state == "queued":
            self._limiter._left_queue(self)  # pyright: ignore[reportPrivateUsage]

    def _grant(self, slots: int, now: float) -> None:
        self.state, self._held, self._since = "holding", slots, now
        # Its waiter may have been cancelled and not have ended it yet.
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)


class Limiter:
    """`slots` in all; leases that do not find as many free as they weigh queue in strict order
    behind the gate's marks, so that a heavy one is not overtaken for ever."""

    def __init__(self, slots: int, gate: Gate, clock: Callable[[], float]) -> None:
        self.slots = slots
        self.gate = gate
        self.clock = clock
        self.mean_service_s: float | None = None
        """Mean time that a slot is held, over about the last 20 leases. None: none has ended."""
        self._held = 0
        self._waiting: OrderedDict[Lease, None] = OrderedDict()

    @property
    def in_flight(self) -> int:
        return self._held

    @property
    def depth(self) -> int:
        """Requests that wait here for a slot."""
        return len(self._waiting)

    def enter(self, weight: int = 1) -> Lease:
        """A lease that holds its slots or queues for them; raises Shed when the gate refuses.

        `weight`: the slots that it takes, as many as there are at most."""
        if not self._waiting and self._fits(weight):
            lease = Lease(self, weight, None)
            self._take(lease)
            return lease
        if self.gate.refuses(self.depth):
            raise Shed(self.drain_s())
        lease = Lease(self, weight, asyncio.get_running_loop().create_future())
        self._waiting[lease] = None
        return lease

    def resize(self, slots: int, high_water: int, low_water: int) -> None:
        """New numbers from now on. Leases above a smaller number of slots run to their end."""
        self.slots = slots
        self.gate.set_marks(high_water, low_water)
        self._fill()

    def drain_s(self) -> float:
        """Seconds until the queue has drained to the low mark and a slot turns over, as measured:
        departures come at `slots / mean_service_s`. Grows with the depth."""
        departures = max(self.depth - self.gate.low_water, 0) + 1
        return departures * (self.mean_service_s or _FIRST_SERVICE_S) / self.slots

    def _fits(self, weight: int) -> bool:
        return self._held + min(weight, self.slots) <= self.slots

    def _take(self, lease: Lease) -> None:
        slots = min(lease.weight, self.slots)
        self._held += slots
        lease._grant(slots, self.clock())  # pyright: ignore[reportPrivateUsage]

    def _freed(self, slots: int, held_s: float) -> None:
        mean_s = held_s if self.mean_service_s is None else self.mean_service_s
        self.mean_service_s = mean_s + _MEAN_WEIGHT * (held_s - mean_s)
        self._held -= slots
        self._fill()

    def _left_queue(self, lease: Lease) -> None:
        del self._waiting[lease]
        self._fill()  # the one behind it may need fewer slots

    def _fill(self) -> None:
        while self._waiting and self._fits(next(iter(self._waiting)).weight):
            lease, _ = self._waiting.popitem(last=False)
            self._take(lease)
        self.gate.drained_to(self.depth)
