"""The limits of all tenants as an exchange meets them: one `take`, one `Grant` that is ended once.

A grant that was not admitted gives back tokens and money when it ends (the request counts); one
that was admitted is corrected from Envoy's log, by whichever processor reads that: see Charged.
"""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from extproc.config import WhenAway
from extproc.limits.memory import Books
from extproc.limits.rules import (
    NANO,
    Cost,
    Levels,
    Rules,
    Taken,
    Which,
    ends_at,
    headers,
    period_of,
    retry_after_s,
)

if TYPE_CHECKING:  # Redis' client is loaded only where it is used
    from extproc.limits.shared import SharedStore

Headers = tuple[tuple[str, str], ...]

# Of how many tenants Redis is asked in one second; a question takes about 0.2 ms of the event loop.
_ASKED_ABOUT = 50
_LOOK_EVERY_S = 0.5


class Charged(NamedTuple):
    """What the store that all share was charged for an exchange; written into Envoy's log."""

    tokens: int
    nano_usd: int
    period: int

    def told(self) -> str:
        return f"{self.tokens}:{self.nano_usd}:{self.period}"


def read_charged(text: str) -> Charged | None:
    """What `told` has written; None: nothing was charged."""
    parts = text.split(":")
    if len(parts) != 3 or not all(map(str.isdecimal, parts)):
        return None
    return Charged(*map(int, parts))


class Refused(NamedTuple):
    which: Which | str
    """Or `away`: nobody could be asked."""
    retry_after_s: float
    headers: Headers = ()
    ends_at: datetime | None = None
    """Of a budget that is spent: when the next one begins."""


class Grant:
    """To be ended once, whatever became of the exchange."""

    __slots__ = ("_limits", "_rules", "_tenant_id", "charged", "headers", "lease_id")

    def __init__(
        self,
        limits: "Limits",
        tenant_id: str,
        rules: Rules,
        lease_id: str,
        charged: Charged,
        headers: Headers,
    ) -> None:
        self._limits = limits
        self._tenant_id = tenant_id
        self._rules = rules
        self.lease_id = lease_id
        self.charged = charged
        self.headers = headers
        """Behind `x-ratelimit-`."""

    def end(self, *, admitted: bool) -> None:
        self._limits.end(self._tenant_id, self._rules, self, admitted=admitted)


class Limits:
    """`on_spent` hears of each tenant whose running streams are to be stopped."""

    def __init__(
        self,
        here: Books,
        shared: "SharedStore | None" = None,
        on_spent: Callable[[str], None] = lambda tenant_id: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.here = here
        self.shared = shared
        self.decided_away: Counter[WhenAway] = Counter()
        """Requests that were decided without Redis, and how."""
        self.on_spent = on_spent
        self.running = 0
        """Grants that have not ended."""
        self._wall_clock = wall_clock
        self._me = os.urandom(6).hex()
        self._numbers = itertools.count()
        self._seconds = 0
        self._to_stop: dict[str, tuple[int, Rules]] = {}
        """Of tenants whose streams would be stopped: how many grants run here."""

    def configure(self, when_away: WhenAway) -> None:
        if self.shared is not None:
            self.shared.when_away = when_away

    # --- an exchange ------------------------------------------------------------------------------

    async def take(
        self, tenant_id: str, rules: Rules, cost: Cost, lease_s: float
    ) -> Grant | Refused:
        """All that a request needs, or nothing. `lease_s`: after so long it has ended for sure."""
        lease_id = f"{self._me}:{next(self._numbers)}"
        if self.shared is None:
            taken = self.here.take(tenant_id, rules, cost, lease_id, lease_s)
            charged = Charged(cost.tokens, cost.nano_usd, taken.levels.period)
            return self._answer(tenant_id, rules, cost, lease_id, taken, charged)
        taken = await self.shared.take(tenant_id, rules, cost, lease_id, lease_s)
        if taken is None:
            return self._take_away(self.shared, tenant_id, rules, cost, lease_id, lease_s)
        charged = Charged(cost.tokens, cost.nano_usd, taken.levels.period)
        return self._answer(tenant_id, rules, cost, lease_id, taken, charged)

    def _take_away(
        self,
        shared: "SharedStore",
        tenant_id: str,
        rules: Rules,
        cost: Cost,
        lease_id: str,
        lease_s: float,
    ) -> Grant | Refused:
        """Redis is charged for all of it when it is counted, if it is back by then."""
        self.decided_away[shared.when_away] += 1
        if shared.when_away == "refuse":
            return Refused("away", 1.0)
        charged = Charged(0, 0, self._period(rules))
        if shared.when_away == "allow":
            return self._granted(tenant_id, rules, lease_id, charged, ())
        taken = shared.take_alone(tenant_id, rules, cost, lease_id, lease_s)
        return self._answer(tenant_id, rules, cost, lease_id, taken, charged)

    def _answer(
        self,
        tenant_id: str,
        rules: Rules,
        cost: Cost,
        lease_id: str,
        taken: Taken,
        charged: Charged,
    ) -> Grant | Refused:
        told = headers(taken.levels, rules)
        if taken.refused is None:
            return self._granted(tenant_id, rules, lease_id, charged, told)
        new = None
        if taken.refused == "budget" and rules.budget:
            new = ends_at(taken.levels.period, rules.budget.per)
        return Refused(taken.refused, retry_after_s(taken, rules, cost), told, new)

    def _granted(
        self, tenant_id: str, rules: Rules, lease_id: str, charged: Charged, told: Headers
    ) -> Grant:
        self.running += 1
        if rules.budget and rules.budget.stops:
            self._to_stop[tenant_id] = (self._to_stop.get(tenant_id, (0, rules))[0] + 1, rules)
        return Grant(self, tenant_id, rules, lease_id, charged, told)

    def end(self, tenant_id: str, rules: Rules, grant: Grant, *, admitted: bool) -> None:
        """Called by the grant alone."""
        self.running -= 1
        if rules.budget and rules.budget.stops:
            count, latest = self._to_stop[tenant_id]
            if count > 1:
                self._to_stop[tenant_id] = (count - 1, latest)
            else:
                del self._to_stop[tenant_id]
        if rules.concurrent is not None:
            (self.shared or self.here).release(tenant_id, grant.lease_id)
        if not admitted:
            self.settle(tenant_id, rules, grant.charged, Cost(0, 0))

    def is_frugal(self, tenant_id: str, rules: Rules) -> bool:
        """Whether the tenant is over its soft mark, as far as is known here."""
        budget, book = rules.budget, self.here.look(tenant_id)
        if budget is None or book is None or book.spent < budget.soft:
            return False
        return book.spent_in(self._period(rules)) >= budget.soft

    # --- what is counted later --------------------------------------------------------------------

    def settle(self, tenant_id: str, rules: Rules, charged: Charged, counted: Cost) -> None:
        more = Cost(counted.tokens - charged.tokens, counted.nano_usd - charged.nano_usd)
        if more == (0, 0):
            return
        if self.shared is None:
            self._heard(tenant_id, self.here.settle(tenant_id, rules, more, charged.period))
        else:
            self.shared.settle(
                tenant_id,
                rules,
                more,
                charged.period,
                lambda levels: self._heard(tenant_id, levels),
            )

    def _heard(self, tenant_id: str, levels: Levels) -> None:
        _, rules = self._to_stop.get(tenant_id, (0, None))
        if rules is None or rules.budget is None or levels.spent < rules.budget.most:
            return
        if levels.period == self._period(rules):
            self.on_spent(tenant_id)

    def keep_up(self, budgeted: Collection[str]) -> None:
        """To be called once a second. `budgeted`: tenants whose budgets are to be known here. Where
        there are many of them, they are asked about in turn."""
        if self.shared is not None:
            self._seconds += 1
            ask_about = (*self._in_turn(self._to_stop), *self._in_turn(budgeted))
            self.shared.keep_up(dict.fromkeys(ask_about), self._heard)

    def _in_turn(self, tenants: Collection[str]) -> tuple[str, ...]:
        names = tuple(tenants)
        if len(names) <= _ASKED_ABOUT:
            return names
        first = self._seconds * _ASKED_ABOUT % len(names)
        return (names + names[:_ASKED_ABOUT])[first : first + _ASKED_ABOUT]

    def _period(self, rules: Rules) -> int:
        return period_of(self._wall_clock(), rules.budget.per) if rules.budget else 0

    # --- for operators ----------------------------------------------------------------------------

    def spent_usd(self, tenant_id: str, rules: Rules) -> float:
        """In this period, as far as is known here."""
        book = self.here.look(tenant_id)
        return book.spent_in(self._period(rules)) / NANO if book else 0.0

    def status(self, named: dict[str, Rules]) -> dict[str, object]:
        """`named`: those whose names may be shown."""
        shared = self.shared
        return {
            "store": "memory" if shared is None else "redis",
            "state": "away" if shared and shared.is_away else "up",
            "processors": 1 if shared is None else shared.processors,
            "tenants": {name: self._tenant_status(name, rules) for name, rules in named.items()},
        }

    def _tenant_status(self, name: str, rules: Rules) -> dict[str, object]:
        """As last used from here."""
        book, told = self.here.look(name), dict[str, object]()
        levels = book.levels(rules) if book else None
        for kind, rate in (("requests", rules.requests), ("tokens", rules.tokens)):
            if rate is not None:
                level = getattr(levels, kind) if levels else rate.most
                told[f"{kind}_per_minute"] = rate.per_minute
                told[f"{kind}_left"] = round(min(level, rate.most), 1)
        if rules.concurrent is not None:
            told["concurrent_requests"] = rules.concurrent
            told["running_here"] = levels.running if levels else 0
        if rules.budget is not None:
            told["budget_usd"] = rules.budget.most / NANO
            told["budget_per"] = rules.budget.per
            told["spent_usd"] = round(self.spent_usd(name, rules), 6)
            told["is_frugal"] = self.is_frugal(name, rules)
        return told

    async def retire(self) -> None:
        """Others have taken over: close when the last grant has given back its place."""
        try:
            while self.running:  # noqa: ASYNC110 - seldom, and for a moment
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            await self.close()

    async def close(self) -> None:
        if self.shared is not None:
            await self.shared.close()
