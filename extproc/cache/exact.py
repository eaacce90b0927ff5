"""The exact cache: a look-up for each request, and storing the answer that follows a miss."""

import math
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from extproc.cache.flight import Flight
from extproc.cache.key import Secret, exact_key
from extproc.cache.request_policy import CachePolicy, Wanted, cache_policy
from extproc.cache.scope import Scope
from extproc.cache.store import Store
from extproc.openai import Answer, AnswerReader, Request, UnreadAnswer


class Hit(NamedTuple):
    answer: Answer
    age_s: float
    ttl_s: float
    """Below 0: it has expired."""

    @property
    def status(self) -> str:
        """The member of a Cache-Status header (RFC 9211)."""
        return f"forebay; hit; ttl={math.floor(self.ttl_s)}"


class Times(NamedTuple):
    """How long answers live, in seconds; `jitter`: the share of it that chance may take away, so
    that what was stored together does not expire together."""

    ttl_s: float
    stale_s: float
    jitter: float = 0.0


class Place(NamedTuple):
    """Where an answer is to be stored."""

    store: Store
    scope: Scope
    key: bytes
    epoch: bytes


class Fill:
    """An answer on its way that is to be stored, if it turns out to be whole and `pool`'s. Others
    may wait for it, once it leads; `give_up` tells them that none will come of it."""

    __slots__ = (
        *("_pool", "_reader", "_stale_s", "flight", "place", "stored", "ttl_s", "unless_cut"),
    )

    def __init__(
        self, place: Place, pool: str, ttl_s: float, stale_s: float, reader: AnswerReader
    ) -> None:
        self.place = place
        self.ttl_s = ttl_s
        self.flight: Flight[bytes, Answer] | None = None
        self.stored: Callable[[Answer | UnreadAnswer], None] | None = None
        """Told of the answer when it is."""
        self.unless_cut = False
        """An answer that did not end by itself is not stored: how it ended is our doing."""
        self._pool = pool
        self._stale_s = stale_s
        self._reader = reader

    def wants(self, headers: Mapping[str, str]) -> bool:
        """Whether the body of an answer with these headers is of interest: a fallback's answer is
        not stored as the wanted pool's, and a compressed one is not read."""
        return (
            headers.get(":status") == "200"
            and headers.get("x-forebay-served-by") == self._pool
            and "content-encoding" not in headers
        )

    def feed(self, piece: bytes) -> bool:
        """Whether the answer has ended by itself."""
        return self._reader.feed(piece)

    def end(self) -> bool:
        """After the last piece: whether the answer was taken by the store."""
        answer = self._reader.end()
        if self.unless_cut and answer is not None:
            answer = answer.read() if isinstance(answer, UnreadAnswer) else answer
            answer = None if answer is None or answer.was_cut else answer
        if answer is None:
            self.give_up()
            return False
        if self.flight is not None and self.flight.is_awaited and isinstance(answer, UnreadAnswer):
            answer = answer.read() or answer
        if self.flight is not None:
            self.flight.end(answer if isinstance(answer, Answer) else None)
        store, scope, key, epoch = self.place
        stored = store.put(scope, key, epoch, answer, self.ttl_s, self._stale_s)
        if stored and self.stored is not None:
            self.stored(answer)
        return stored

    def give_up(self) -> None:
        """Nothing will be stored. After `end` it does nothing."""
        if self.flight is not None:
            self.flight.end()


class Query(NamedTuple):
    """A request, and what its tenant has of the caches."""

    scope: Scope | None
    """Within whom answers are shared; None: nobody knows whose this one would be."""
    alike_scope: Scope | None
    """Within whom questions are compared; None: they are not."""
    wanted: Wanted
    pool: str
    """See exact_key."""
    model: str
    """That the pool serves now."""
    request: Request
    body: bytes
    """What `request` was parsed from."""
    cache_control: str

    @property
    def served_by(self) -> str:
        """Whose answer it would be: the pool, and what it serves."""
        return f"{self.pool}={self.model}"


class Look(NamedTuple):
    """What there is for a request; to look changes nothing. `place`: None where it is neither read
    nor stored. `kept`: what is stored there, also what has expired or the client does not take."""

    policy: CachePolicy
    place: Place | None = None
    kept: Hit | None = None
    usable: Hit | None = None
    """Of `kept`, what the client takes; it may have expired."""

    @property
    def hit(self) -> Hit | None:
        usable = self.usable
        return usable if usable is not None and usable.ttl_s > 0 else None


class ExactCache:
    """A store and the rules by which requests use it."""

    def __init__(
        self,
        store: Store,
        secret: Secret,
        times: Times,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw`: from 0 to 1, for the jitter."""
        self.store = store
        self.secret = secret
        self.times = times
        self._draw = draw

    async def look(self, query: Query) -> Look:
        """Does not suspend with a store in memory."""
        request, scope = query.request, query.scope
        policy = cache_policy(query.cache_control, request.temperature, query.wanted)
        if scope is None or not policy.may_store:
            return Look(policy)
        key = exact_key(
            self.secret, scope, query.served_by, request.path, query.body, request.members
        )
        if key is None:
            return Look(policy)
        found = await self.store.get(scope, key)
        place = Place(self.store, scope, key, found.epoch)
        if found.entry is None:
            return Look(policy, place)
        kept = Hit(*found.entry)
        takes = policy.may_read and policy.takes(kept.age_s)
        return Look(policy, place, kept, kept if takes else None)

    def fill(self, place: Place, query: Query) -> Fill:
        """To store what the model answers."""
        times, request = self.times, query.request
        return Fill(
            place,
            query.pool,
            times.ttl_s * (1 - times.jitter * self._draw()),
            times.stale_s,
            AnswerReader(request.path, streamed=request.stream, choices=request.sequences),
        )

    async def purge(self, tenant: str, user: str | None = None) -> None:
        """All that was stored for the tenant, its users included, or for one user of it. What is in
        public scope stays. Raises StoreUnavailable."""
        scope = Scope("tenant", tenant, "") if user is None else Scope("user", tenant, user)
        await self.store.purge(scope)
