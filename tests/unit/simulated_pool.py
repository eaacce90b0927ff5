"""A pool in virtual time: clients before the real Limiter, with marks set once a second.

What is simulated is the clients, the servers and the clock; every decision is the product's own.
Leases that queue need a running event loop, so use it inside an async test; it never sleeps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf, log
from random import Random
from typing import Literal

from extproc.admission import Ask, Lease, Limiter, Marks, Running, Shed, Slo, marks

Draw = Callable[[], float]
Wanted = int | Literal["auto"]

TOKENS_PER_S = 100


def service(scv: float, chance: Random) -> Draw:
    """Mean 1. Exponential for 1; constant for 0; below 1 gamma (0.5: two-stage Erlang); above 1
    hyperexponential with balanced means."""
    if scv == 0:
        return lambda: 1.0
    if scv == 1:
        return lambda: chance.expovariate(1)
    if scv < 1:
        return lambda: chance.gammavariate(1 / scv, scv)
    often = (1 + ((scv - 1) / (scv + 1)) ** 0.5) / 2
    return lambda: chance.expovariate(2 * (often if chance.random() < often else 1 - often))


def lognormal(scv: float, chance: Random) -> Draw:
    """Mean 1."""
    sigma = log(1 + scv) ** 0.5
    return lambda: chance.lognormvariate(-sigma * sigma / 2, sigma)


@dataclass(frozen=True, slots=True)
class Clients:
    """One tenant's requests in one class."""

    per_s: float
    mean_service_s: float
    draw: Draw
    """Service times in units of the mean."""
    tenant: str = ""
    share: float = 1.0
    class_index: int = 0
    weight: int = 1
    estimate: float = 1.0
    """What a request is charged when it is granted, over what it takes on average."""
    come_back: bool = False
    """After Retry-After, for as long as they are shed."""


@dataclass(slots=True)
class Seen:
    """What became of one arrival."""

    clients: Clients
    at_s: float
    tries: int = 1
    """Which of its client's arrivals this is."""
    queued: bool = False
    wait_s: float | None = None
    """Until it got its slots. None: it did not, being shed, pushed out, or still waiting."""


@dataclass
class Pool:
    """`run` once or more, and read what it returns when all have had time to get their slots."""

    slots: int
    high: Wanted = "auto"
    low: Wanted = "auto"
    slo_s: float = 1.0
    """All of it is for waiting: the servers' own time to the first token is 0."""
    starving_s: float = inf
    spare: float = 0.0
    """The share of the slots that batch leaves free."""
    stops_s: float | None = None
    """How long a batch answer takes to end where others need its slot. None: it runs on."""
    seed: int = 5
    now: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    """The high mark, second by second."""
    heaviest: int = 1
    idled: int = 0
    """Events after which somebody waited though even the heaviest request would have fitted."""

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.limiter = Limiter(
            self.slots, Marks(0, 0, 0, ""), clock=lambda: self.now, starving_s=self.starving_s
        )
        self.limiter.set_lane(self.spare, self.stops_s)
        self.stopped = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._by_lease: dict[Lease, Seen] = {}
        self._set_marks()

    @property
    def transitions(self) -> int:
        return self.limiter.gates[0].transitions

    def run(self, streams: Sequence[Clients], seconds: float) -> list[Seen]:
        """Poisson arrivals of these clients for so long; all who came in that time."""
        first, until = len(self.seen), self.now + seconds
        for clients in streams:
            self.heaviest = max(self.heaviest, clients.weight)
            self._next_arrival(clients, until)
        while self._events[0][0] <= until:
            self.now, _, event = heappop(self._events)
            event()
            waiting, free = self.limiter.waiting, self.slots - self.limiter.in_flight
            self.idled += waiting > 0 and free >= self.heaviest
        self.now = until
        return self.seen[first:]

    def burst(self, clients: Clients, requests: int, over_s: float) -> None:
        """Let so many come evenly spread in the next seconds."""
        for i in range(requests):
            self._at(self.now + over_s * i / requests, lambda: self._arrive(clients, 1))

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heappush(self._events, (time, next(self._numbers), event))

    def _next_arrival(self, clients: Clients, until: float) -> None:
        at = self.now + self.chance.expovariate(clients.per_s) if clients.per_s else inf

        def event() -> None:
            self._next_arrival(clients, until)
            self._arrive(clients, 1)

        if at < until:
            self._at(at, event)

    def _arrive(self, clients: Clients, tries: int) -> None:
        tokens = round(clients.mean_service_s * TOKENS_PER_S * clients.estimate)
        ask = Ask(clients.weight, clients.tenant, clients.share, clients.class_index, tokens)
        seen = Seen(clients, self.now, tries)
        self.seen.append(seen)
        try:
            lease = self.limiter.enter(ask)
        except Shed:
            if clients.come_back:
                away_s = self.limiter.retry_after_s("", 1.0, self.chance.random())
                self._at(self.now + away_s, lambda: self._arrive(clients, tries + 1))
            return
        self._by_lease[lease] = seen
        seen.queued = lease.state == "queued"
        if not seen.queued:
            self._serve(lease, seen)

    def _serve(self, lease: Lease, seen: Seen) -> None:
        seen.wait_s = self.now - seen.at_s
        took_s = seen.clients.mean_service_s * seen.clients.draw()
        self._at(self.now + took_s, lambda: self._finish(lease, took_s))

        def stop(reason: str) -> None:
            self.stopped += 1
            began, stops_s = self.now, self.stops_s or 0.0
            self._at(began + stops_s, lambda: self._finish(lease, began + stops_s - lease.since))

        lease.on_stop = stop

    def _finish(self, lease: Lease, took_s: float) -> None:
        if lease.has_ended:
            return
        lease.end()
        took = round(took_s * TOKENS_PER_S)
        self.limiter.correct(lease.tenant, lease.share, took - lease.ask.tokens)
        # Who was granted slots just now stands last in the limiter's own list.
        for granted in reversed(self.limiter._holding):  # pyright: ignore[reportPrivateUsage]
            seen = self._by_lease[granted]
            if seen.wait_s is not None:
                return
            self._serve(granted, seen)

    def _set_marks(self) -> None:
        limiter, slo, nothing = self.limiter, Slo(self.slo_s, 0.99), Running()
        wanted = marks(
            self.high,
            self.low,
            "auto",
            slo=slo,
            slots=self.slots,
            service_s=limiter.service_s,
            first_token_s=nothing,
        )
        limiter.set_marks(wanted)
        self.highs.append(limiter.marks.high)
        self._at(self.now + 1.0, self._set_marks)
