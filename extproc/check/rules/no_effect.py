"""What a policy says in vain: the processor accepts it, and it cannot be what was meant."""

from collections.abc import Iterator

from extproc.check.bootstrap import Policy
from extproc.check.findings import Finding, warning
from extproc.config import Config, PoolConfig, TenantConfig
from extproc.limits import rules_of


def no_effect(policy: Policy) -> Iterator[Finding]:
    """Warnings: the processor starts with all of this."""
    config = policy.config
    if config is None:
        return
    said = (
        *_overload(config),
        *_times(config),
        *_cache(config),
        *_difficulty(config),
        *_limits(config),
        *_unused(config),
    )
    for key, reason, mend in said:
        yield warning("no-effect", policy.spot.at(key), reason, mend)


_Said = Iterator[tuple[str, str, str]]


def _overload(config: Config) -> _Said:
    admission = config.admission
    if "shorter_tokens" in admission.model_fields_set and "shorter" not in admission.on_overload:
        yield (
            "admission.shorter_tokens",
            "No answer is shortened: on_overload does not name `shorter`.",
            "Add shorter to admission.on_overload, or leave shorter_tokens out.",
        )
    asked = "on_overload" in admission.model_fields_set and "cached" in admission.on_overload
    if asked and config.cache.exact is None:
        yield (
            "admission.on_overload",
            "`cached` gives nobody an answer: there is no cache.",
            "Add cache: {exact: {}}, or leave cached out.",
        )
    batch = admission.batch
    if batch.when_needed == "stop" and not any(map(_can_be_ended, _all_cases(config))):
        yield (
            "admission.batch.when_needed",
            "No batch answer is ever ended early: no server can be asked to, and no stream is "
            "guarded.",
            "Leave it out, or set on_expiry: partial.",
        )
    if "spare" in batch.model_fields_set and all(p.all_slots == 1 for p in config.pools.values()):
        yield (
            "admission.batch.spare",
            "A pool of one slot has none to spare: batch would not run at all.",
            "Leave it out.",
        )
    overflow = [name for name, pool in config.pools.items() if pool.overflow_only]
    lists = config.routing.fallback.values()
    if "overflow" in admission.on_overload and not any(
        name in later for name in overflow for later in lists
    ):
        yield (
            "admission.on_overload",
            "`overflow` takes nothing: no fallback list has an overflow_only pool.",
            "Name one in routing.fallback, or leave overflow out.",
        )
    exact = config.cache.exact
    if exact and "stale" in exact.model_fields_set and "cached" not in admission.on_overload:
        yield (
            "cache.exact.stale",
            "No expired answer is given: on_overload does not name `cached`.",
            "Add cached to admission.on_overload, or leave stale out.",
        )


def _times(config: Config) -> _Said:
    admission, response = config.admission, config.response
    if admission.high_water == "auto" and admission.slo.ttft > admission.max_wait:
        yield (
            "admission.max_wait",
            f"The marks let requests wait as long as slo.ttft allows ({admission.slo.ttft:g}s), "
            f"and max_wait ends them after {admission.max_wait:g}s: who waits longer has waited in "
            "vain.",
            "Set max_wait above admission.slo.ttft.",
        )
    if admission.max_wait >= response.deadline:
        yield (
            "admission.max_wait",
            f"A request may wait for {admission.max_wait:g}s, and its answer has to have ended "
            f"{response.deadline:g}s after it came: what waits longest has no time left.",
            "Set max_wait well below response.deadline.",
        )
    if response.cap_to_deadline and all(
        pool.server == "vllm" and partial for pool, partial in _all_cases(config)
    ):
        yield (
            "response.cap_to_deadline",
            "No answer gets a limit by it: every server can be asked to end its answers at the "
            "deadline, which does so no sooner than needed.",
            "Leave it out. It is for servers that cannot be asked, and for on_expiry: cut.",
        )
    if "stall" in response.model_fields_set and response.stall >= config.longest_s:
        yield (
            "response.stall",
            f"No answer lasts long enough to be silent for {response.stall:g}s: the longest may "
            f"take {config.longest_s:g}s.",
            "Set stall below response.deadline.",
        )


def _all_cases(config: Config) -> list[tuple[PoolConfig, bool]]:
    """Each pool, with each way of the deadline: whether it is to end answers well-formed."""
    partials = {expiry.partial for expiry in config.expiries}
    return [(pool, partial) for pool in config.pools.values() for partial in partials]


def _can_be_ended(case: tuple[PoolConfig, bool]) -> bool:
    pool, partial = case
    return pool.server == "vllm" or partial


def _cache(config: Config) -> _Said:
    cache, exact, semantic = config.cache, config.cache.exact, config.cache.semantic
    for name in ("exact", "semantic"):
        if name in cache.model_fields_set and getattr(cache, name) is None:
            yield (
                f"cache.{name}",
                "Nothing stands there, so that this cache is off.",
                f"Write {name}: {{}} for all its defaults, or leave {name} out.",
            )
    if exact is None and cache.store.redis is not None:
        yield (
            "cache.store",
            "Nothing is stored: there is no cache.",
            "Add exact: {} to cache, or leave store out.",
        )
    for name, tenant in config.tenants.items():
        if exact is None and tenant.cache.model_fields_set & {"scope", "store"}:
            yield (
                f"tenants.{name}.cache",
                "Nothing is stored for anybody: there is no cache.",
                "Add cache: {exact: {}} to the policy, or leave this out.",
            )
    if exact and semantic and "ttl" in semantic.model_fields_set and semantic.ttl > exact.ttl:
        yield (
            "cache.semantic.ttl",
            f"No answer is kept for {semantic.ttl:g}s: it ends after cache.exact.ttl "
            f"({exact.ttl:g}s).",
            "Set it to cache.exact.ttl at most.",
        )


def _difficulty(config: Config) -> _Said:
    routing, difficulty = config.routing, config.routing.difficulty
    said = difficulty.model_fields_set
    if "share" in said and difficulty.policy not in ("prior", "learned"):
        yield (
            "routing.difficulty.share",
            f"The policy {difficulty.policy} keeps no share.",
            "Set policy: prior, or learned with a model_file, or leave share out.",
        )
    if "model_file" in said and difficulty.policy != "learned":
        yield (
            "routing.difficulty.model_file",
            f"The policy {difficulty.policy} reads no model.",
            "Set policy: learned, or leave model_file out.",
        )
    for key in ("difficulty", "learning"):
        if key in routing.model_fields_set and not any(_choices(config)):
            yield (
                f"routing.{key}",
                "Nobody is judged: with one pool for all, a pin or a list of pools there is no "
                "choice for any tenant.",
                f"Let some tenant use both {routing.small} and {routing.large}, without a pin, or "
                f"leave {key} out.",
            )
    for name, tenant in config.tenants.items():
        if "learning" in tenant.model_fields_set and routing.learning is None:
            yield (
                f"tenants.{name}.learning",
                "Nothing is sampled: routing.learning is off.",
                "Add routing.learning, or leave learning out.",
            )
        if tenant.pin and tenant.pools == (tenant.pin,):
            yield (
                f"tenants.{name}.pin",
                f"{tenant.pin} is the only pool that it may use.",
                "Leave pin out.",
            )


def _choices(config: Config) -> Iterator[bool]:
    """Of each tenant whether some request of it may go either way."""
    small, large = config.routing.small, config.routing.large
    tenants = list(config.tenants.values())
    if "default" not in config.tenants and config.unknown_tenant == "default":
        tenants.append(TenantConfig())
    for tenant in tenants:
        pools = tenant.pools or tuple(config.pools)
        has_two = len(pools) > 1 and not {small, large}.isdisjoint(pools)
        yield tenant.pin is None and small != large and has_two


def _limits(config: Config) -> _Said:
    limits, tenants = config.limits, config.tenants.items()
    if limits.store.redis and not any(rules_of(tenant) for _, tenant in tenants):
        yield (
            "limits.store",
            "Nothing is kept there: no tenant has a limit.",
            "Give a tenant requests_per_minute, tokens_per_minute, concurrent_requests or budget, "
            "or leave store out.",
        )
    if "when_away" in limits.model_fields_set and limits.store.redis is None:
        yield (
            "limits.when_away",
            "Limits are kept in this processor's memory, which is never away.",
            "Add store: {redis: {url: ...}} to limits, or leave when_away out.",
        )
    for name, tenant in tenants:
        rates = (tenant.requests_per_minute, tenant.tokens_per_minute)
        if "burst" in tenant.model_fields_set and rates == (None, None):
            yield (
                f"tenants.{name}.burst",
                "There is no rate of which so much may be used at once.",
                "Add requests_per_minute or tokens_per_minute, or leave burst out.",
            )
        pools = {pool: config.pools.get(pool) for pool in tenant.pools or config.pools}
        if tenant.budget and not any(pool and pool.price for pool in pools.values()):
            yield (
                f"tenants.{name}.budget",
                "Nothing is ever spent: no pool of this tenant has a price.",
                "Add price: {input: 0.10, output: 0.40} to the pools (USD per million tokens).",
            )
        soft = tenant.budget and "soft" in tenant.budget.model_fields_set
        if soft and config.routing.small not in pools:
            yield (
                f"tenants.{name}.budget.soft",
                f"No request can go to the small pool, {config.routing.small}: this tenant may not "
                "use it.",
                "Add it to the tenant's pools, or leave soft out.",
            )
        elif soft and tenant.pin:
            yield (
                f"tenants.{name}.budget.soft",
                f"A pin goes before it: what leaves the choice to us goes to {tenant.pin}.",
                "Leave pin or soft out.",
            )


def _unused(config: Config) -> _Said:
    pools = config.pools.values()
    if "stall" in config.response.model_fields_set and not any(
        pool.partial_by == "guard" for pool in pools
    ):
        yield (
            "response.stall",
            "Silence is noticed in guarded streams only, and no pool has partial_by: guard.",
            "Set partial_by: guard for a pool, or leave stall out. (Envoy's idle_timeout of the "
            "route admit_stream cuts the others.)",
        )
    for name, tenant in config.tenants.items():
        if tenant.priority and not any(pool.priority for pool in pools):
            yield (
                f"tenants.{name}.priority",
                "No server is told of it: no pool has priority: true.",
                "Add priority: true to the pools (vLLM: --scheduling-policy priority).",
            )
    vectors = config.response.paths.get("/v1/embeddings")
    if vectors and vectors.on_expiry == "partial":
        yield (
            "response.paths./v1/embeddings.on_expiry",
            "There is no partial vector: at its deadline such an answer is cut.",
            "Leave on_expiry out.",
        )
    if vectors and not config.pools_that("embeddings"):
        yield (
            "response.paths./v1/embeddings",
            "No pool serves embeddings: such requests are refused.",
            "Add serves: embeddings to a pool, or leave this out.",
        )
    if config.costs.batch_price != 1 and not any(pool.price for pool in pools):
        yield (
            "costs.batch_price",
            "Nothing has a cost: no pool has a price.",
            "Add price: {input: 0.10, output: 0.40} to the pools (USD per million tokens).",
        )
