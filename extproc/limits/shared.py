"""Limits that processors share: Redis says what may be; while it is away, `when_away`.

`here` holds what Redis has told last of each tenant, refilled since. So a processor that has to
decide alone goes on from there, with its share; and a Redis that has forgotten all is told.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from extproc.config import WhenAway
from extproc.limits.memory import Books
from extproc.limits.redis_store import RedisStore, Settled
from extproc.limits.rules import Cost, Levels, Rules, Taken
from extproc.redis_link import Away

_log = logging.getLogger(__name__)

_MOST_OWED = 10_000
_REMEMBERED = 10  # counts of processors, a second each


class _Owed(NamedTuple):
    """What Redis has to be told when it is back: money alone, for buckets refill anyway."""

    tenant_id: str
    rules: Rules
    nano_usd: int
    period: int


class SharedStore:
    def __init__(
        self,
        redis: RedisStore,
        here: Books,
        clock: Callable[[], float],
        processor: str,
    ) -> None:
        """`processor`: a name that no other one has."""
        self.when_away: WhenAway = "local"
        self.redis = redis
        self.here = here
        self._clock = clock
        self._processor = processor
        self._counts: deque[int] = deque((1,), _REMEMBERED)
        self._owed: deque[_Owed] = deque(maxlen=_MOST_OWED)
        self._unreleased: deque[tuple[str, str]] = deque(maxlen=_MOST_OWED)
        self._keeping_up: asyncio.Task[None] | None = None

    @property
    def processors(self) -> int:
        """The most that were seen lately: one that is just restarting counts."""
        return max(self._counts)

    @property
    def is_away(self) -> bool:
        return self.redis.link.is_open

    async def take(
        self, tenant_id: str, rules: Rules, cost: Cost, lease_id: str, lease_s: float
    ) -> Taken | None:
        """See Book.take. None: Redis is away. What it grants all the same, only later, is given
        back."""
        book = self.here.book(tenant_id)
        book.refill(rules, self._clock())

        def late(taken: Taken) -> None:
            back = Cost(-cost.tokens, -cost.nano_usd)
            self.settle(tenant_id, rules, back, taken.levels.period, lambda levels: None)
            if rules.concurrent is not None:
                self._release(tenant_id, lease_id)

        try:
            taken = await self.redis.take(tenant_id, rules, cost, lease_id, lease_s, book, late)
        except Away:
            if rules.concurrent is not None:  # it may still hear of it
                self._unreleased.append((tenant_id, lease_id))
            return None
        now_s = self._clock()
        book.hear(rules, taken.levels, now_s)
        if taken.refused is None and rules.concurrent is not None:
            book.hold(lease_id, now_s + lease_s)
        return taken

    def take_alone(
        self, tenant_id: str, rules: Rules, cost: Cost, lease_id: str, lease_s: float
    ) -> Taken:
        """The share of this processor."""
        taken = self.here.take(tenant_id, rules, cost, lease_id, lease_s, self.processors)
        self.here.book(tenant_id).is_ahead = True
        return taken

    def settle(
        self,
        tenant_id: str,
        rules: Rules,
        more: Cost,
        period: int,
        told: Callable[[Levels], None],
    ) -> None:
        def lost(may_be_done: bool) -> None:
            """Told twice would be worse than not at all: it may be money given back."""
            if rules.budget and more.nano_usd and not may_be_done:
                self._owed.append(_Owed(tenant_id, rules, more.nano_usd, period))

        if self.is_away:
            lost(False)
            return
        self.redis.settle(
            tenant_id,
            rules,
            more,
            period,
            self.here.look(tenant_id),
            lambda now: told(self._hear_spent(tenant_id, now)),
            lost,
        )

    def _hear_spent(self, tenant_id: str, now: Settled) -> Levels:
        if now.period:  # else it has forgotten, and is told with the next request
            book = self.here.book(tenant_id)
            book.spent, book.heard_spent, book.period = now.spent, now.spent, now.period
        return Levels(spent=now.spent, period=now.period)

    def release(self, tenant_id: str, lease_id: str) -> None:
        """One that Redis does not hear of ends by itself, but only then."""
        self.here.release(tenant_id, lease_id)
        self._release(tenant_id, lease_id)

    def _release(self, tenant_id: str, lease_id: str) -> None:
        if self.is_away:
            self._unreleased.append((tenant_id, lease_id))
        else:
            self.redis.release(
                tenant_id, lease_id, lambda _: self._unreleased.append((tenant_id, lease_id))
            )

    def keep_up(self, ask_about: Collection[str], told: Callable[[str, Levels], None]) -> None:
        """To be called once a second. `ask_about`: tenants of which `told` is to hear what they
        have spent."""
        if self._keeping_up is None or self._keeping_up.done():
            self._keeping_up = asyncio.create_task(self._keep_up(tuple(ask_about), told))

    async def _keep_up(
        self, ask_about: tuple[str, ...], told: Callable[[str, Levels], None]
    ) -> None:
        try:
            self._counts.append(await self.redis.present(self._processor))
            self._tell_what_is_owed()
            for tenant_id in ask_about:
                told(tenant_id, self._hear_spent(tenant_id, await self.redis.spent(tenant_id)))
        except Away:
            self._counts.append(max(self._counts))

    def _tell_what_is_owed(self) -> None:
        owed, self._owed = self._owed, deque(maxlen=_MOST_OWED)  # what fails is owed again
        for one in owed:
            self.settle(*one[:2], Cost(0, one.nano_usd), one.period, lambda levels: None)
        unreleased, self._unreleased = self._unreleased, deque(maxlen=_MOST_OWED)
        for tenant_id, lease_id in unreleased:
            self._release(tenant_id, lease_id)

    async def close(self) -> None:
        if self._keeping_up is not None:
            self._keeping_up.cancel()
        await self.redis.link.close()
