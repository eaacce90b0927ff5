"""A plan without some of its pools: for a request that not every server understands. Pure."""

from collections.abc import Collection

from extproc.routing.plan import Plan


def without(plan: Plan, pools: Collection[str], why: str) -> Plan | None:
    """None: no pool is left. `why`, for a person to read, joins the reason where the first of them
    is gone."""
    kept = tuple(pool for pool in plan.pools if pool not in pools)
    if kept == plan.pools:
        return plan
    if not kept:
        return None
    smaller = tuple(pool for pool in plan.smaller if pool not in pools)
    return plan._replace(
        pools=kept,
        reason=plan.reason if kept[0] == plan.pools[0] else f"{plan.reason}; {why}",
        wanted=kept[0] if plan.wanted in pools else plan.wanted,
        smaller=smaller if smaller[:1] == plan.smaller[:1] else (),
        overflow=tuple(pool for pool in plan.overflow if pool not in pools),
    )


def from_overflow(plan: Plan, pool: str) -> tuple[str, ...]:
    """What to try once `pool`, one of plan.overflow, has taken the request: it and what comes after
    it in the list, but for the pool that sheds."""
    later = plan.pools[plan.pools.index(pool) :]
    return tuple(one for one in later if one != plan.pools[0])
