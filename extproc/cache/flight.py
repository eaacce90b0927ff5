"""One flight: of identical requests under way one asks the model, the others wait for its answer.

Knows nothing of who waits for how long: a follower that stops waiting simply goes on by itself.
"""

import asyncio
from typing import Generic, TypeVar

K = TypeVar("K")
A = TypeVar("A")


class Flight(Generic[K, A]):
    """What the first request owns. `end` is the one place where it is over, whatever ended it."""

    __slots__ = ("_ended", "_flights", "_key", "_landed")

    def __init__(self, flights: "Flights[K, A]", key: K) -> None:
        self._flights = flights
        self._key = key
        self._landed: asyncio.Future[A | None] | None = None
        self._ended = False

    def end(self, answer: A | None = None) -> None:
        """Tell all who wait; None: there is no answer for them. Any call after the first does
        nothing."""
        if self._ended:
            return
        self._ended = True
        self._flights.over(self._key)
        if self._landed is not None:
            self._landed.set_result(answer)

    @property
    def is_awaited(self) -> bool:
        """By others than its owner."""
        return self._landed is not None

    @property
    def landed(self) -> "asyncio.Future[A | None]":
        """Resolves when it is over, with the answer or None. Shared: never to be cancelled."""
        if self._landed is None:
            self._landed = asyncio.get_running_loop().create_future()
        return self._landed


class Flights(Generic[K, A]):
    """The flights under way, by the key that identical requests share."""

    def __init__(self) -> None:
        self._under_way: dict[K, Flight[K, A]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def find(self, key: K) -> Flight[K, A] | None:
        return self._under_way.get(key)

    def begin(self, key: K) -> Flight[K, A] | None:
        """None: another is under way."""
        if key in self._under_way:
            return None
        flight = self._under_way[key] = Flight(self, key)
        return flight

    def over(self, key: K) -> None:
        del self._under_way[key]
