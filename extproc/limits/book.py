"""What one tenant has used, and the steps by which that changes. Pure: the times are arguments.

State: two levels and when they were right, the leases that run and when they end by themselves,
and what was spent in the last period that anything was charged in. `take` changes all of it or
nothing. Redis does the same steps in limits/scripts.py: change both.
"""

from math import inf

from extproc.limits.rules import (
    Budget,
    Cost,
    Levels,
    Rules,
    Taken,
    Which,
    covers,
    period_of,
    refilled,
)


class Book:
    """`now_s`: of any clock that goes on evenly; `wall_s`: seconds since 1970, for the periods.

    `weight`: how many processors share the limits without hearing of each other. What one grants
    counts so often, for the others are taken to grant as much: so each has its share.
    """

    __slots__ = (
        "at_s",
        "heard_spent",
        "is_ahead",
        "leases",
        "period",
        "requests",
        "spent",
        "tokens",
    )

    def __init__(self) -> None:
        self.requests = self.tokens = inf
        """Levels at `at_s`; inf: as full as the rules allow."""
        self.at_s = 0.0
        self.leases: dict[str, float] | None = None
        """When each ends by itself, by lease id."""
        self.period = 0
        self.spent = 0
        self.heard_spent = 0
        """Of `spent`, what the store that is shared has told."""
        self.is_ahead = False
        """Something was granted here that the shared store has not heard of."""

    def take(
        self,
        rules: Rules,
        cost: Cost,
        lease_id: str,
        lease_s: float,
        now_s: float,
        wall_s: float,
        weight: int = 1,
    ) -> Taken:
        """Charge for one request, or say which limit it does not fit."""
        self.refill(rules, now_s)
        if rules.budget:
            self._turn(rules.budget, wall_s)
        refused = self._lacks(rules, cost, now_s, weight)
        if refused is None:
            if rules.requests:
                self.requests -= weight
            if rules.tokens:
                self.tokens -= cost.tokens * weight
            if rules.budget:
                self.spent += cost.nano_usd * weight
            if rules.concurrent is not None:
                self.hold(lease_id, now_s + lease_s)
        return Taken(refused, self.levels(rules))

    def _lacks(self, rules: Rules, cost: Cost, now_s: float, weight: int) -> Which | None:
        requests, tokens, concurrent, budget = rules
        if budget and self.spent + cost.nano_usd * weight > budget.most:
            return "budget"
        if concurrent is not None and self.leases:
            if (len(self.leases) + 1) * weight > concurrent:
                self._forget_leases(now_s)
            if self.leases and (len(self.leases) + 1) * weight > concurrent:
                return "concurrent"
        if requests and not covers(self.requests, weight, requests):
            return "requests"
        if tokens and not covers(self.tokens, cost.tokens * weight, tokens):
            return "tokens"
        return None

    def settle(self, rules: Rules, more: Cost, period: int, now_s: float) -> Levels:
        """Charge `more` of a request that was granted in `period`, or give back what is below 0.
        What belongs to a period that is over changes nothing."""
        self.refill(rules, now_s)
        if rules.tokens:
            self.tokens = min(self.tokens - more.tokens, rules.tokens.most)
        if rules.budget and period == self.period:
            self.spent = max(self.spent + more.nano_usd, 0)
        return self.levels(rules)

    def hold(self, lease_id: str, ends_s: float) -> None:
        if self.leases is None:
            self.leases = {}
        self.leases[lease_id] = ends_s

    def release(self, lease_id: str) -> None:
        if self.leases:
            self.leases.pop(lease_id, None)

    def refill(self, rules: Rules, now_s: float) -> None:
        passed_s, self.at_s = now_s - self.at_s, now_s
        if rules.requests:
            self.requests = refilled(self.requests, rules.requests, passed_s)
        if rules.tokens:
            self.tokens = refilled(self.tokens, rules.tokens, passed_s)

    def levels(self, rules: Rules) -> Levels:
        return Levels(
            self.requests if rules.requests else 0.0,
            self.tokens if rules.tokens else 0.0,
            len(self.leases) if self.leases else 0,
            self.spent,
            self.period,
        )

    def hear(self, rules: Rules, levels: Levels, now_s: float) -> None:
        """What the shared store has told is what holds."""
        self.requests = levels.requests if rules.requests else inf
        self.tokens = levels.tokens if rules.tokens else inf
        self.at_s = now_s
        self.spent = self.heard_spent = levels.spent
        self.period = levels.period
        self.is_ahead = False

    def spent_in(self, period: int) -> int:
        return self.spent if period == self.period else 0

    def is_idle(self, now_s: float, wall_s: float) -> bool:
        """Nothing would be lost with it, as far as that can be told without the tenant's rules."""
        self._forget_leases(now_s)
        owes = self.spent and self.period in (period_of(wall_s, "day"), period_of(wall_s, "month"))
        return not self.leases and not owes and now_s - self.at_s > _IDLE_S

    def _turn(self, budget: Budget, wall_s: float) -> None:
        period = period_of(wall_s, budget.per)
        if period != self.period:
            self.period, self.spent, self.heard_spent = period, 0, 0

    def _forget_leases(self, now_s: float) -> None:
        """Those whose holder never ended them."""
        if self.leases:
            self.leases = {one: ends for one, ends in self.leases.items() if ends > now_s} or None


# A bucket that nobody has touched for so long counts as full.
_IDLE_S = 120.0
