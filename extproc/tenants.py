"""Whose request is this, and what may they use. Pure.

The tenant's name comes from one header, set by a trusted filter in front of us.
"""

from typing import NamedTuple

from extproc.admission import CLASSES
from extproc.config import CacheScope, CacheWanted, Config, TenantConfig
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
    """The pools that this tenant may use, in the order of preference: those that generate."""
    class_index: int = 0
    """In admission.CLASSES."""
    share: float = 1.0
    """Its weight beside other tenants of its class."""
    caching: Caching | None = None
    """None: nothing is stored or read."""
    most_tokens: int | None = None
    """Of each choice of an answer; None: as the client says."""
    priority: int = 0
    """Added to that of its class, where vLLM goes by it."""
    embeddings: "Tenant | None" = None
    """The same tenant where it wants vectors: with the pools that serve them, and no cache. None:
    it may use no such pool."""
    pin: str = ""
    """The pool for what leaves the choice to us; empty: none."""
    sampled: bool = True
    """Its prompts may be shown to the judge of routing.learning."""
    rules: Rules | None = None
    """What it may use; None: as much as it wants."""


class UnknownTenant(Exception):
    """The policy refuses tenants that it does not name."""


class Tenants:
    """All tenants of a config, worked out once."""

    def __init__(self, config: Config) -> None:
        self._named = {
            name: _tenant(name, policy, config) for name, policy in config.tenants.items()
        }
        default = config.tenants.get("default", TenantConfig())
        self._default = _tenant("default", default, config)
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


def _tenant(name: str, policy: TenantConfig, config: Config) -> Tenant:
    class_index = CLASSES.index(policy.request_class)
    cache = config.cache
    own, exact, caching = policy.cache, cache.exact, None
    if exact is not None and own.exact:
        alike = cache.semantic.scope if cache.semantic and own.semantic else None
        caching = Caching(own.scope or exact.scope, own.store or exact.store, alike)
    allowed = policy.pools or tuple(config.pools)
    pools, embedders = (
        tuple(pool for pool in allowed if config.pools[pool].serves == kind)
        for kind in ("generate", "embeddings")
    )
    tenant = Tenant(
        name,
        pools,
        class_index,
        policy.weight,
        caching,
        most_tokens=policy.max_output_tokens,
        priority=policy.priority,
        pin=policy.pin or "",
        sampled=policy.learning,
        rules=rules_of(policy),
    )
    if not embedders:
        return tenant
    return tenant._replace(embeddings=tenant._replace(pools=embedders, caching=None))
