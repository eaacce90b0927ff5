"""From a request to the ordered list of pools that Envoy may try, one tier per attempt.

Order of authority: the pools a tenant may use, then a model named by the client, then the rules.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from extproc.config import PoolConfig, RoutingConfig
from extproc.routing.difficulty import judge

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


def plan(
    *,
    model: str,
    last_user_text: str,
    tokens_needed: int,
    latency_budget_ms: float | None,
    allowed: Sequence[str],
    pools: dict[str, PoolConfig],
    routing: RoutingConfig,
    is_up: Callable[[PoolConfig], bool],
) -> Plan:
    """`tokens_needed`: prompt and answer together, estimated. `allowed`: the tenant's pools.

    The estimate only chooses between pools; whether a prompt is too long is the server's to say. A
    pool that is down leaves the list; if all are down the list stays whole, since the poll that
    says so may be wrong. Raises Unroutable.
    """
    first, reason = _first_pool(
        model, last_user_text, tokens_needed, latency_budget_ms, allowed, pools, routing
    )

    def tiers_from(pool: str) -> tuple[list[str], list[str]]:
        later = routing.fallback.get(pool, ())
        tiers = [pool, *[p for p in later if p in allowed and _fits(pools[p], tokens_needed)]]
        return tiers, [tier for tier in tiers if is_up(pools[tier])]

    tiers, alive = tiers_from(first)
    alive = alive or tiers
    if alive[0] != first:
        reason = f"{reason}; {first} is down"
    smaller: list[str] = []
    small = routing.small
    chosen = model == routing.auto_model and alive[0] != small and small in allowed
    if chosen and _fits(pools[small], tokens_needed):
        alive_from_small = tiers_from(small)[1]
        smaller = alive_from_small if alive_from_small[:1] == [small] else []
    large = routing.large
    ruled = model == routing.auto_model and alive[0] == first != large and large in allowed
    return Plan(tuple(alive), reason, first, tuple(smaller), large if ruled else "")


def _first_pool(
    model: str,
    last_user_text: str,
    tokens_needed: int,
    latency_budget_ms: float | None,
    allowed: Sequence[str],
    pools: dict[str, PoolConfig],
    routing: RoutingConfig,
) -> tuple[str, str]:
    if model != routing.auto_model:
        return _named_pool(model, allowed, pools), "client-model"
    size, reason = judge(last_user_text, latency_budget_ms)
    wanted = routing.small if size == "small" else routing.large
    if wanted == routing.small and not _fits(pools[wanted], tokens_needed):
        wanted, reason = routing.large, "context"
    if wanted in allowed:
        return wanted, reason
    other = next((p for p in allowed if not pools[p].overflow_only), allowed[0])
    return other, f"{reason}; tenant may not use {wanted}"


def _named_pool(model: str, allowed: Sequence[str], pools: dict[str, PoolConfig]) -> str:
    for name, pool in pools.items():
        if pool.model == model:
            if name in allowed:
                return name
            raise Unroutable("model_not_allowed", "Your account may not use this model.")
    raise Unroutable(
        "model_not_found", "There is no model of this name. GET /v1/models lists what there is."
    )


def _fits(pool: PoolConfig, tokens_needed: int) -> bool:
    return pool.context is None or tokens_needed <= pool.context
