"""A request's handle on a pool: what it asks for, and the place that it got.

`Lease.end` is the only place where slots or a place in the queue are given back. Nothing here
decides who gets any: a lease moves on by the limiter's word alone.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

CLASSES = ("interactive", "batch")
"""In the order in which they are served: none while one of a class before it waits."""


class Ask(NamedTuple):
    """Who asks for slots, and what for."""

    weight: int = 1
    """Slots that it takes, as many as there are at most: the sequences that it makes."""
    tenant: str = ""
    share: float = 1.0
    """The tenant's weight."""
    class_index: int = 0
    """In CLASSES."""
    tokens: int = 1
    """What it will take of the servers, as estimated."""
    size_bytes: int = 0
    """What is held for it while it waits."""
    ends_by: float = float("inf")
    """The last moment of its lease, by the limiter's clock."""
    owner: str = ""
    """The request's id."""


class Owner(Protocol):
    """The limiter, as a lease sees it."""

    most_weights: tuple[int, ...]
    """By class: the slots that one request may take."""

    def take_back(self, lease: "Lease", state: str) -> None:
        """The lease has ended; `state`: what it was before."""
        ...


class Lease:
    """A request's place in a pool: queued, then holding its slots, then ended."""

    __slots__ = ("_granted", "_owner", "ask", "held", "on_stop", "position", "since", "state")

    def __init__(self, owner: Owner, ask: Ask, now: float) -> None:
        self.ask = ask
        self.held = 0
        """Slots."""
        self.position = 0
        """Its place in the queue when it joined, from 1; 0: it never waited."""
        self.since = now
        """Since when it is in its state."""
        self.state: Literal["queued", "holding", "ended"] = "queued"
        self.on_stop: Callable[[str], None] | None = None
        """What begins to end its answer early and well-formed, for a reason in one word. None:
        nothing does, yet or any more."""
        self._owner = owner
        self._granted: asyncio.Future[None] | None = None

    @property
    def weight(self) -> int:
        """Slots that it takes, or would."""
        wanted, most = self.ask.weight, self._owner.most_weights[self.ask.class_index]
        return wanted if wanted < most else most

    @property
    def tenant(self) -> str:
        return self.ask.tenant

    @property
    def class_index(self) -> int:
        return self.ask.class_index

    @property
    def share(self) -> float:
        return self.ask.share

    @property
    def settled(self) -> "asyncio.Future[None]":
        """Resolves when a queued lease gets its slots, or loses its place to another request; its
        `state` tells which. Waiting for it decides nothing: whoever stops waiting calls `end`,
        which gives back whatever the lease has by then."""
        assert self._granted is not None, "a lease that never queued has nothing to wait for"
        return self._granted

    @property
    def has_ended(self) -> bool:
        return self.state == "ended"

    def stop(self, reason: str) -> bool:
        """Have its answer ended early, once; whether that has begun. The slots come back as ever,
        by `end`, when the answer has ended. False: it waits, is not admitted yet, cannot be ended
        well-formed, or is being ended."""
        begin, self.on_stop = self.on_stop, None
        if begin is None or self.state != "holding":
            return False
        begin(reason)
        return True

    def end(self) -> None:
        """Give back the slots or the place in the queue. Any call after the first does nothing."""
        state, self.state = self.state, "ended"
        if state != "ended":
            self.on_stop = None
            self._owner.take_back(self, state)

    # --- for the limiter alone --------------------------------------------------------------------

    def queue_up(self, position: int) -> None:
        self.position = position
        self._granted = asyncio.get_running_loop().create_future()

    def grant(self, slots: int, now: float) -> None:
        self.state, self.held, self.since = "holding", slots, now
        self._wake()

    def push_out(self) -> None:
        self.end()
        self._wake()

    def _wake(self) -> None:
        # Its waiter may have been cancelled and not have ended it yet.
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)
