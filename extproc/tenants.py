"""Whose request is this, and what may they use. Pure.

The tenant's name comes from one header, set by a trusted filter in front of us.
"""

from typing import NamedTuple

from extproc.admission import CLASSES
from extproc.config import CacheConfig, CacheScope, CacheWanted, Config, TenantConfig
from extproc.limits import Rules, rules_of


class Caching(NamedTuple):
    """Of one tenant: within whom its answers are shared, and which are stored."""

    scope: CacheScope
    wanted: CacheWanted
    alike: CacheScope | None = None
    """Within whom its questions are compared; None: they are not."""


class Tenant(NamedTuple):
    label: str
    """For metrics and logs: a configured name or `default`, so the set of labels is bounded."""
    pools: tuple[str, ...]
    """The pools that this tenant may use, in the order of preference."""
    class_index: int = 0
    """In admission.CLASSES."""
    share: float = 1.0
    """Its weight beside other tenants of its class."""
    caching: Caching | None = None
    """None: nothing is stored or read."""
    rules: Rules | None = None
    """What it may use; None: as much as it wants."""


class UnknownTenant(Exception):
    """The policy refuses tenants that it does not name."""


class Tenants:
    """All tenants of a config, worked out once."""

    def __init__(self, config: Config) -> None:
        every_pool = tuple(config.pools)
        self._named = {
            name: _tenant(name, policy, every_pool, config.cache)
            for name, policy in config.tenants.items()
        }
        default = config.tenants.get("default", TenantConfig())
        self._default = _tenant("default", default, every_pool, config.cache)
        self._takes_unknown = config.unknown_tenant == "default"

    def resolve(self, header_value: str | None) -> Tenant:
        """A tenant without a policy of its own has that of `default`, or raises UnknownTenant."""
        named = self._named.get(header_value) if header_value is not None else None
        if named is not None:
            return named
        if self._takes_unknown:
            return self._default
        raise UnknownTenant

    def share_of(self, header_value: str) -> float:
        return self._named.get(header_value, self._default).share

    def rules_of(self, header_value: str) -> Rules | None:
        return self._named.get(header_value, self._default).rules

    @property
    def named_rules(self) -> dict[str, Rules]:
        """Of the tenants with limits whose names may be shown: `default` is no tenant."""
        named = {name: one.rules for name, one in self._named.items() if name != "default"}
        return {name: rules for name, rules in named.items() if rules is not None}


def _tenant(
    name: str, policy: TenantConfig, every_pool: tuple[str, ...], cache: CacheConfig
) -> Tenant:
    class_index = CLASSES.index(policy.request_class)
    own, exact, caching = policy.cache, cache.exact, None
    if exact is not None and own.exact:
        alike = cache.semantic.scope if cache.semantic and own.semantic else None
        caching = Caching(own.scope or exact.scope, own.store or exact.store, alike)
    rules = rules_of(policy)
    return Tenant(name, policy.pools or every_pool, class_index, policy.weight, caching, rules)
