"""From a request to the ordered list of pools that Envoy may try, one tier per attempt.

Order of authority: the pools a tenant may use, then a model named by the client, then the rules.
"""

from collections.abc import Collection
from math import inf
from typing import Literal, NamedTuple

from extproc.config import PoolConfig, RoutingConfig
from extproc.routing.rules import judge

Why = Literal["model_not_found", "model_not_allowed"]


class Plan(NamedTuple):
    """`pools`: what Envoy tries, first to last, never empty. `reason`: for a person to read.
    `wanted`: whose answer it would be if every pool were up. `smaller`: what to try where that pool
    sheds; empty where the choice was the client's, or the small pool already. `instead_of`: the
    large pool, where a rule took another one that is up; else empty."""

    pools: tuple[str, ...]
    reason: str
    wanted: str
    smaller: tuple[str, ...] = ()
    instead_of: str = ""


class Unroutable(Exception):
    """No pool can take the request; `why` is the code that the client is told."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why: Why = why


class _Usual(NamedTuple):
    """What a plan is like while nothing is down and every prompt fits."""

    pools: tuple[str, ...]
    smaller: tuple[str, ...]
    instead_of: str
    context: float
    """Tokens that fit every pool that could be in it."""


class Router:
    """The rules of one config. All that it keeps is what it has worked out before."""

    def __init__(self, pools: dict[str, PoolConfig], routing: RoutingConfig) -> None:
        self._pools = pools
        self._routing = routing
        self._known: dict[tuple[tuple[str, ...], str, bool], _Usual] = {}

    def plan(
        self,
        *,
        model: str,
        last_user_text: str,
        tokens_needed: int,
        latency_budget_ms: float | None,
        allowed: tuple[str, ...],
        down: Collection[str] = (),
        frugal: bool = False,
    ) -> Plan:
        """`tokens_needed`: prompt and answer together, estimated. `allowed`: the tenant's pools.
        `frugal`: what leaves the choice to us goes to the small one, where it fits.

        The estimate only chooses between pools; whether a prompt is too long is the server's to
        say. A pool that is down leaves the list; if all are down the list stays whole, since the
        poll that says so may be wrong. Raises Unroutable.
        """
        free = model == self._routing.auto_model
        if free:
            first, reason = self._by_rules(
                last_user_text, tokens_needed, latency_budget_ms, allowed, frugal
            )
        else:
            first, reason = self._named_pool(model, allowed), "client-model"
        usual = self._known.get((allowed, first, free))
        if usual is None:
            made = self._worked_out(first, "", free, 0, allowed, ())
            usual = _Usual(made.pools, made.smaller, made.instead_of, self._context(first))
            self._known[allowed, first, free] = usual
        if down or tokens_needed > usual.context:
            return self._worked_out(first, reason, free, tokens_needed, allowed, down)
        return Plan(usual.pools, reason, first, usual.smaller, usual.instead_of)

    def _by_rules(
        self,
        last_user_text: str,
        tokens_needed: int,
        latency_budget_ms: float | None,
        allowed: tuple[str, ...],
        frugal: bool,
    ) -> tuple[str, str]:
        small = self._routing.small
        size, reason = "small", "budget"
        if not frugal:
            size, reason = judge(last_user_text, latency_budget_ms)
        wanted = small if size == "small" else self._routing.large
        if wanted == small and not _fits(self._pools[small], tokens_needed):
            wanted, reason = self._routing.large, "context"
        if wanted in allowed:
            return wanted, reason
        other = next((p for p in allowed if not self._pools[p].overflow_only), allowed[0])
        return other, f"{reason}; tenant may not use {wanted}"

    def _named_pool(self, model: str, allowed: tuple[str, ...]) -> str:
        for name, pool in self._pools.items():
            if pool.model == model:
                if name in allowed:
                    return name
                raise Unroutable("model_not_allowed", "Your account may not use this model.")
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
        """`free`: the choice was ours."""

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
        return Plan(tuple(alive), reason, first, tuple(smaller), large if ruled else "")


def _fits(pool: PoolConfig, tokens_needed: int) -> bool:
    return pool.context is None or tokens_needed <= pool.context
