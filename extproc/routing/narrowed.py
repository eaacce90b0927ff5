"""A plan without some of its pools: for a request that not every server understands. Pure."""

from collections.abc import Collection

from extproc.routing.plan import Plan


def without(plan: Plan, pools: Collection[str], why: str) -> Plan | None:
    """None: no pool is left, also none that a rule might have chosen instead. `why`, for a person
    to read, joins the reason where the first of them is gone."""
    smaller = tuple(pool for pool in plan.smaller if pool not in pools)
    instead = tuple(pool for pool in (plan.instead_of,) if pool and pool not in pools)
    kept = tuple(pool for pool in plan.pools if pool not in pools) or smaller or instead
    if not kept:
        return None
    first = kept[0]
    if smaller[:1] != plan.smaller[:1] or smaller[:1] == (first,):
        smaller = ()
    narrowed = plan._replace(
        pools=kept,
        reason=plan.reason if first == plan.pools[0] else f"{plan.reason}; {why}",
        wanted=first if plan.wanted in pools else plan.wanted,
        smaller=smaller,
        instead_of="" if plan.instead_of in (*pools, first) else plan.instead_of,
        overflow=tuple(pool for pool in plan.overflow if pool not in (*pools, first)),
    )
    return plan if narrowed == plan else narrowed


def from_overflow(plan: Plan, pool: str) -> tuple[str, ...]:
    """What to try once `pool`, one of plan.overflow, has taken the request: it and what comes after
    it in the list, but for the pool that sheds."""
    later = plan.pools[plan.pools.index(pool) :]
    return tuple(one for one in later if one != plan.pools[0])
