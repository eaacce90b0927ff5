"""From a request to the ordered list of pools that Envoy may try, one tier per attempt.

Order of authority: the pools a tenant may use, a model named by the client, the tenant's pin, what
fits, the tenant's budget, and then how hard the request is. (A pin goes before the budget: it is
what the operator says of this very tenant, and a budget that has to bind it can refuse.)
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from math import inf
from typing import Literal, NamedTuple

from extproc.config import PoolConfig, RoutingConfig
from extproc.routing.difficulty import Difficulty, Rules
from extproc.routing.rules import Judgement

Why = Literal["model_not_found", "model_not_allowed", "model_not_served_here", "invalid_request"]
_STATUS: dict[Why, int] = {
    "model_not_found": 404,
    "model_not_allowed": 403,
    "model_not_served_here": 400,
    "invalid_request": 400,
}


_ELSEWHERE = {
    "generate": "This model makes embeddings only; it answers at /v1/embeddings.",
    "embeddings": "This model makes no embeddings; it answers at /v1/chat/completions.",
}

_RULES = Rules()
# Reasons of plans for which nobody asked how hard the request is.
_NOT_JUDGED = {
    *("client-model", "pin", "only-choice", "context", "budget", "latency-budget"),
    "embeddings",
}


class Plan(NamedTuple):
    """`pools`: what Envoy tries, first to last, never empty. `reason`: for a person to read.
    `wanted`: whose answer it would be if every pool were up. `smaller`: what to try where that pool
    sheds; empty where the choice was the client's, a pin's, or the small pool already.
    `instead_of`: the large pool, where a rule took another one that is up; else empty. `overflow`:
    those of `pools` that are overflow_only and may take what the first one sheds; empty where the
    choice was the client's or a pin's."""

    pools: tuple[str, ...]
    reason: str
    wanted: str
    smaller: tuple[str, ...] = ()
    instead_of: str = ""
    overflow: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """Of the reason what comes from a bounded set: the rest (a pool is down) would make labels
        without end."""
        return self.reason.partition(";")[0]

    @property
    def judged(self) -> bool:
        """How hard the request is has decided."""
        return self.rule not in _NOT_JUDGED


class Unroutable(Exception):
    """No pool can take the request; `why` is the code that the client is told, `param` the member
    of its body that it is about."""

    def __init__(self, why: Why, message: str, param: str = "model") -> None:
        super().__init__(message)
        self.why: Why = why
        self.param = param
        self.status = _STATUS[why]
        """The HTTP status that goes with it."""


class _Usual(NamedTuple):
    """What a plan is like while nothing is down and every prompt fits."""

    plan: Plan
    """Without its reason."""
    context: float
    """Tokens that fit every pool that could be in it."""
    plans: dict[str, Plan]
    """By reason, of which there are few."""


class _Ends(NamedTuple):
    """Of a tenant: its pools for what is easy and for what is hard, and what is said to that."""

    easy: str
    hard: str
    of_easy: str
    of_hard: str


class Router:
    """The rules of one config. All that it keeps is what it has worked out before."""

    def __init__(
        self,
        pools: dict[str, PoolConfig],
        routing: RoutingConfig,
        difficulty: Difficulty = _RULES,
    ) -> None:
        self._pools = pools
        self._routing = routing
        self._auto = {routing.auto_model}
        self._named: defaultdict[str, list[str]] = defaultdict(list)
        """By what clients call them."""
        for name, pool in pools.items():
            self._named[pool.model].append(name)
        for alias, target in routing.aliases.items():
            if target == routing.auto_model:
                self._auto.add(alias)
            else:
                self._named[alias] = [target]
        self._difficulty = difficulty
        self._known: dict[tuple[tuple[str, ...], str, bool], _Usual] = {}
        self._ends: dict[tuple[str, ...], _Ends] = {}

    def plan(
        self,
        *,
        model: str,
        last_user_text: str,
        tokens_needed: int,
        latency_budget_ms: float | None,
        allowed: tuple[str, ...],
        down: Collection[str] = (),
        pin: str = "",
        frugal: bool = False,
        counts: bool = True,
    ) -> Plan:
        """`tokens_needed`: prompt and answer together, estimated. `allowed`: the tenant's pools;
        `pin`: the one of them that is to take what leaves the choice to us, empty: none. `frugal`:
        that choice is to be the small pool. `counts`: it is a request, and not only looked at.

        The estimate only chooses between pools; whether a prompt is too long is the server's to
        say. A pool that is down leaves the list; if all are down the list stays whole, since the
        poll that says so may be wrong. Raises Unroutable.
        """
        free = model in self._auto
        if not free:
            first, reason = self._named_pool(model, allowed, "generate"), "client-model"
        elif not allowed:
            raise Unroutable(
                "model_not_allowed", "Your account may not use a model that generates."
            )
        elif pin:
            first, reason, free = pin, "pin", False
        else:
            judge = self._difficulty.judge if counts else self._difficulty.look
            first, reason = self._chosen(
                last_user_text, tokens_needed, latency_budget_ms, allowed, frugal, judge
            )
        usual = self._known.get((allowed, first, free))
        if usual is None:
            made = self._worked_out(first, "", free, 0, allowed, ())
            usual = self._known[allowed, first, free] = _Usual(made, self._context(first), {})
        if down or tokens_needed > usual.context:
            return self._worked_out(first, reason, free, tokens_needed, allowed, down)
        plan = usual.plans.get(reason)
        if plan is None:
            plan = usual.plans[reason] = usual.plan._replace(reason=reason)
        return plan

    def plan_embeddings(
        self, model: str, allowed: tuple[str, ...], down: Collection[str] = ()
    ) -> Plan:
        """For vectors: the pool of the model that was named, or for `auto` the first that the
        tenant may use. No other model takes its place, since the vectors of two cannot be compared.
        `allowed`: pools that serve embeddings. Raises Unroutable."""
        if model in self._auto:
            usual = (pool for pool in allowed if not self._pools[pool].overflow_only)
            first, reason = next(usual, allowed[0]), "embeddings"
        else:
            first, reason = self._named_pool(model, allowed, "embeddings"), "client-model"
        return self._worked_out(first, reason, False, 0, allowed, down)

    def _chosen(
        self,
        last_user_text: str,
        tokens_needed: int,
        latency_budget_ms: float | None,
        allowed: tuple[str, ...],
        frugal: bool,
        judge: Callable[[str, float | None], Judgement],
    ) -> tuple[str, str]:
        """Judged is only what may go either way: a share is kept of those that are judged."""
        ends = self._ends.get(allowed)
        if ends is None:
            ends = self._ends[allowed] = self._ends_of(allowed)
        easy, hard, of_easy, of_hard = ends
        if easy == hard:
            return easy, f"only-choice{of_easy or of_hard}"
        if not _fits(self._pools[easy], tokens_needed):
            return hard, f"context{of_hard}"
        if frugal:
            return easy, f"budget{of_easy}"
        size, reason = judge(last_user_text, latency_budget_ms)
        return (easy, f"{reason}{of_easy}") if size == "small" else (hard, f"{reason}{of_hard}")

    def _ends_of(self, allowed: tuple[str, ...]) -> _Ends:
        small, large = self._routing.small, self._routing.large
        other = next((p for p in allowed if not self._pools[p].overflow_only), allowed[0])
        not_small, not_large = small not in allowed, large not in allowed
        return _Ends(
            other if not_small else small,
            other if not_large else large,
            f"; tenant may not use {small}" if not_small else "",
            f"; tenant may not use {large}" if not_large else "",
        )

    def _named_pool(
        self, model: str, allowed: tuple[str, ...], serves: Literal["generate", "embeddings"]
    ) -> str:
        named = self._named.get(model, ())
        mine = [name for name in named if self._pools[name].serves == serves]
        for name in mine:
            if name in allowed:
                return name
        if mine:
            raise Unroutable("model_not_allowed", "Your account may not use this model.")
        if named:
            raise Unroutable("model_not_served_here", _ELSEWHERE[serves])
        message = "There is no model of this name. GET /v1/models lists what there is."
        raise Unroutable("model_not_found", message)

    def _context(self, first: str) -> float:
        routing = self._routing
        names = (
            routing.small,
            *(p for start in (first, routing.small) for p in self._after(start)),
        )
        return min(self._pools[name].context or inf for name in names)

    def _after(self, pool: str) -> tuple[str, ...]:
        return tuple(self._routing.fallback.get(pool, ()))

    def _worked_out(
        self,
        first: str,
        reason: str,
        free: bool,
        tokens_needed: int,
        allowed: tuple[str, ...],
        down: Collection[str],
    ) -> Plan:
        """`free`: the choice was ours, and not that of the client or of a pin."""

        def tiers_from(pool: str) -> tuple[list[str], list[str]]:
            later = [p for p in self._after(pool) if p in allowed]
            tiers = [pool, *[p for p in later if _fits(self._pools[p], tokens_needed)]]
            return tiers, [tier for tier in tiers if tier not in down]

        tiers, alive = tiers_from(first)
        alive = alive or tiers
        if alive[0] != first:
            reason = f"{reason}; {first} is down"
        smaller: list[str] = []
        small = self._routing.small
        may_be_smaller = free and alive[0] != small and small in allowed
        if may_be_smaller and _fits(self._pools[small], tokens_needed):
            alive_from_small = tiers_from(small)[1]
            smaller = alive_from_small if alive_from_small[:1] == [small] else []
        large = self._routing.large
        ruled = free and alive[0] == first != large and large in allowed
        overflow = [p for p in alive[1:] if free and self._pools[p].overflow_only]
        return Plan(
            tuple(alive),
            reason,
            first,
            tuple(smaller),
            large if ruled else "",
            tuple(p for p in dict.fromkeys(overflow) if p != alive[0]),
        )


def _fits(pool: PoolConfig, tokens_needed: int) -> bool:
    return pool.context is None or tokens_needed <= pool.context
