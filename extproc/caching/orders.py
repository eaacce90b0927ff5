"""What an operator has the caches do: forget, and compare a tenant's questions again.

Public scope is nobody's alone: what is in it is never purged for a tenant.
"""

from extproc import wire
from extproc.cache import Caches
from extproc.caching.report import Done, Purge, Trust
from extproc.gateway import Gateway, Policy
from extproc.tenants import UnknownTenant


class NotOn(Exception):
    """There is no such cache; the message says what is off."""


async def purge(gateway: Gateway, order: Purge) -> Done:
    """Raises NotOn, StoreUnavailable."""
    policy, tenant, user = gateway.policy, order.tenant, order.user
    caches = _caches(policy)
    before = caches.exact.store.stats()
    # As their ids come with requests: else all but ASCII would name somebody else.
    await caches.exact.purge(
        wire.as_in_header(tenant), user if user is None else wire.as_in_header(user)
    )
    after = caches.exact.store.stats()
    whose = f"of tenant {tenant}, its users' included," if user is None else f"of user {user}"
    entries = None
    if before.entries is None or after.entries is None:
        gone = (
            f"All stored answers {whose} are out of reach, for every processor that shares the "
            "store; Redis drops them at their end."
        )
    else:
        entries = before.entries - after.entries
        gone = f"{entries} stored answers {whose} are gone from this processor's memory."
    return Done([gone, *_what_else(policy, tenant, user)], entries)


def _what_else(policy: Policy, tenant: str, user: str | None) -> list[str]:
    """What the order did not do, or did beside."""
    says = ["What a model was asked for them before is not stored any more."]
    if user is not None:
        says.append(f"What all users of tenant {tenant} share stays: purge without a user.")
    says.append("What is in public scope stays.")
    try:
        known = policy.tenants.resolve(tenant)
    except UnknownTenant:
        return [*says, f"The policy refuses tenant {tenant}: is it the right name?"]
    if tenant not in policy.config.tenants:
        says.append(f"The policy does not name tenant {tenant}: is it the right one?")
    if known.caching is not None and known.caching.scope == "public":
        says.append("That is where the answers of this tenant are stored now (scope: public).")
    return says


def trust(gateway: Gateway, order: Trust) -> Done:
    """Raises NotOn."""
    semantic = _caches(gateway.policy).semantic
    if semantic is None:
        raise NotOn("The semantic cache is off: see forebay.cache.semantic.")
    tenant = wire.as_in_header(order.tenant)
    if tenant not in semantic.budget.off():
        return Done([f"Questions of tenant {order.tenant} are compared already."])
    semantic.budget.reset(tenant)
    return Done(
        [
            f"Questions of tenant {order.tenant} are compared again, by this processor.",
            "What was stored stays. If hits are false again, they will be compared no more.",
        ]
    )


def _caches(policy: Policy) -> Caches:
    if policy.caches is None:
        raise NotOn("The caches are off: see forebay.cache.exact.")
    return policy.caches
