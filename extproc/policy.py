"""What an exchange keeps from its start to its end: the config, and what enforces it.

Never changed: another config makes another policy.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from extproc.admission import Limiter
from extproc.cache import Caches, Query, scope_of
from extproc.config import Config, Expiry
from extproc.injections import Injections
from extproc.openai import EMBEDDINGS, OwnMembers, Request, own_members
from extproc.routing import Plan, Router, Unroutable, without
from extproc.routing.difficulty import Difficulty
from extproc.tenants import Tenant, Tenants


@dataclass(frozen=True, slots=True)
class Policy:
    """See `enforced`. Limiters, caches and the share of large outlive a change of the config."""

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
    caps_to_deadline: bool
    """See response.cap_to_deadline."""
    may_cap: bool
    """Either of these."""
    uncounted: str
    """Pools whose servers are not vLLM, `;large;hosted;`: Envoy must not count their streams, see
    the filter of that name, and they get no members of vLLM's."""
    others: frozenset[str]
    """The same pools."""
    injections: Injections
    _model_names: dict[tuple[str, ...], str] = field(default_factory=dict)
    _expiries: dict[tuple[str, str], Expiry] = field(default_factory=dict)

    def model_names(self, tiers: tuple[str, ...]) -> str:
        """What the servers of each tier call the model: a JSON string:
        `;small="small-7b";large="large-70b";`. Spliced into the body by the tier's own filter,
        where the client called it otherwise."""
        names = self._model_names.get(tiers)
        if names is None:
            pools = self.config.pools
            names = ";" + "".join(f'{tier}="{pools[tier].model}";' for tier in dict.fromkeys(tiers))
            self._model_names[tiers] = names
        return names

    def own_members(self, request: Request, body: bytes) -> OwnMembers:
        """What it has for vLLM alone. Raises ApiError."""
        return own_members(request, body, for_others=bool(self.others))

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
        *,
        contract: str = "",
        frugal: bool = False,
        counts: bool = True,
    ) -> Plan:
        """To be called once for each request: a share is kept by what was decided before.
        `contract`: see openai.OwnMembers; with one it goes to vLLM alone. `frugal`, `counts`: see
        Router.plan. Raises Unroutable."""
        plan = self._any_plan(request, tenant, latency_budget_ms, down, frugal, counts)
        if not contract:
            return plan
        narrowed = without(plan, self.others, f"{contract} is for vLLM only")
        if narrowed is None:
            message = f"The servers of this model do not know `{contract}`: leave it out."
            raise Unroutable("invalid_request", message, contract)
        return narrowed

    def _any_plan(
        self,
        request: Request,
        tenant: Tenant,
        latency_budget_ms: float | None,
        down: Collection[str],
        frugal: bool,
        counts: bool,
    ) -> Plan:
        """Whatever only some servers know."""
        if request.path == EMBEDDINGS:
            return self.router.plan_embeddings(request.model, tenant.pools, down)
        return self.router.plan(
            model=request.model,
            last_user_text=request.last_user_text,
            tokens_needed=request.prompt_tokens_estimate + (request.max_tokens or 0),
            latency_budget_ms=latency_budget_ms,
            allowed=tenant.pools,
            down=down,
            pin=tenant.pin,
            frugal=frugal,
            counts=counts,
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

    def can_end(self, pool: str, *, stream: bool, partial: bool) -> bool:
        """Whether an answer of this pool can be ended early and well-formed: its server can be
        asked to, or it is a stream that is guarded. `partial`: streams may be."""
        settings = self.config.pools[pool]
        return settings.server == "vllm" or (stream and partial and settings.partial_by == "guard")

    def all_guarded(self, tiers: tuple[str, ...]) -> bool:
        """Whether a stream of whichever tier serves passes by way of us, to be ended by us."""
        if not self.guards:
            return False
        return all(self.config.pools[tier].partial_by == "guard" for tier in tiers)


def enforced(
    config: Config,
    limiters: Mapping[str, Limiter],
    caches: Caches | None,
    difficulty: Difficulty,
    salt_secret: bytes = b"",
) -> Policy:
    """`salt_secret`: by which cache salts are hashed."""
    guards = _guards(config)
    shortens = "shorter" in config.admission.on_overload
    to_deadline = config.response.cap_to_deadline
    return Policy(
        config,
        Tenants(config),
        Router(config.pools, config.routing, difficulty),
        limiters,
        caches,
        guards=guards,
        sees_answers=caches is not None or guards,
        may_shorten=shortens,
        caps_to_deadline=to_deadline,
        may_cap=shortens or to_deadline,
        uncounted=_uncounted(config),
        others=frozenset(_others(config)),
        injections=Injections(config.pools, salt_secret),
    )


def _guards(config: Config) -> bool:
    texts = [pool for pool in config.pools.values() if pool.serves == "generate"]
    by_guard = any(pool.partial_by == "guard" for pool in texts)
    return by_guard and any(expiry.partial for expiry in config.expiries)


def _others(config: Config) -> list[str]:
    return [name for name, pool in config.pools.items() if pool.server == "other"]


def _uncounted(config: Config) -> str:
    others = _others(config)
    return f";{';'.join(others)};" if others else ""
