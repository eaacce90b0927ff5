"""What an exchange keeps from its start to its end: the config, and what enforces it.

Never changed: another config makes another policy.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from extproc.admission import Limiter
from extproc.cache import Caches, Query, scope_of
from extproc.config import Config, Expiry
from extproc.openai import Request
from extproc.routing import Plan, Router
from extproc.tenants import Tenant, Tenants


@dataclass(frozen=True, slots=True)
class Policy:
    """See `enforced`. Limiters and caches outlive a change of the config."""

    config: Config
    tenants: Tenants
    router: Router
    limiters: Mapping[str, Limiter]
    caches: Caches | None
    guards: bool
    """Streams of some pool are ended by us at their deadline."""
    sees_answers: bool
    """Some answer may have to pass by way of the processor: to be stored, or guarded."""
    may_shorten: bool
    """Answers of requests that had to queue are cut to admission.shorter_tokens."""
    uncounted: str
    """Pools whose streams Envoy must not count, `;large;hosted;`: see the filter of that name."""
    _model_names: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)
    _expiries: dict[tuple[str, str], Expiry] = field(default_factory=dict)

    def model_names(self, asked: str, tiers: tuple[str, ...]) -> str:
        """For each tier whose servers call the model otherwise than the client (who asked for
        `asked`, a name that was routed), its JSON name: `;small="small-7b";large="large-70b";`.
        Spliced into the body by the tier's own filter."""
        names = self._model_names.get((asked, tiers))
        if names is None:
            pools = self.config.pools
            others = [tier for tier in dict.fromkeys(tiers) if pools[tier].model != asked]
            names = ";" + "".join(f'{tier}="{pools[tier].model}";' for tier in others)
            self._model_names[asked, tiers] = names
        return names

    def expiry(self, tenant_label: str, path: str) -> Expiry:
        """There are few: labels are names of the config, `path` is one that is served."""
        expiry = self._expiries.get((tenant_label, path))
        if expiry is None:
            expiry = self._expiries[tenant_label, path] = self.config.expiry(tenant_label, path)
        return expiry

    def route(
        self,
        request: Request,
        tenant: Tenant,
        latency_budget_ms: float | None,
        down: Collection[str],
        frugal: bool = False,
    ) -> Plan:
        """`frugal`: the tenant's budget is nearly spent. Raises Unroutable."""
        return self.router.plan(
            model=request.model,
            last_user_text=request.last_user_text,
            tokens_needed=request.prompt_tokens_estimate + (request.max_tokens or 0),
            latency_budget_ms=latency_budget_ms,
            allowed=tenant.pools,
            down=down,
            frugal=frugal,
        )

    def query(
        self,
        request: Request,
        body: bytes,
        *,
        tenant: Tenant,
        tenant_id: str,
        user_id: str,
        pool: str,
        cache_control: str,
    ) -> Query | None:
        """What to ask of the caches for a request that `pool` is to answer; None: nothing, since
        the tenant has none. The ids: as they came with it, which may be empty."""
        caching = tenant.caching
        if caching is None:
            return None
        return Query(
            scope=scope_of(caching.scope, tenant_id, user_id),
            alike_scope=scope_of(caching.alike, tenant_id, user_id) if caching.alike else None,
            wanted=caching.wanted,
            pool=pool,
            model=self.config.pools[pool].model,
            request=request,
            body=body,
            cache_control=cache_control,
        )

    def all_guarded(self, tiers: tuple[str, ...]) -> bool:
        """Whether a stream of whichever tier serves passes by way of us, to be ended by us."""
        if not self.guards:
            return False
        return all(self.config.pools[tier].partial_by == "guard" for tier in tiers)


def enforced(config: Config, limiters: Mapping[str, Limiter], caches: Caches | None) -> Policy:
    guards = _guards(config)
    return Policy(
        config,
        Tenants(config),
        Router(config.pools, config.routing),
        limiters,
        caches,
        guards=guards,
        sees_answers=caches is not None or guards,
        may_shorten="shorter" in config.admission.on_overload,
        uncounted=_uncounted(config),
    )


def _guards(config: Config) -> bool:
    by_guard = any(pool.partial_by == "guard" for pool in config.pools.values())
    return by_guard and any(expiry.partial for expiry in config.expiries)


def _uncounted(config: Config) -> str:
    others = [name for name, pool in config.pools.items() if pool.server == "other"]
    return f";{';'.join(others)};" if others else ""
