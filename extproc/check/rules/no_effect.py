"""What a policy says in vain: the processor accepts it, and it cannot be what was meant."""

from collections.abc import Iterator

from extproc.check.bootstrap import Policy
from extproc.check.findings import Finding, warning
from extproc.config import Config
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
    if "stall" in response.model_fields_set and response.stall >= config.longest_s:
        yield (
            "response.stall",
            f"No answer lasts long enough to be silent for {response.stall:g}s: the longest may "
            f"take {config.longest_s:g}s.",
            "Set stall below response.deadline.",
        )


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
    if "batch_price" in config.costs.model_fields_set and not any(pool.price for pool in pools):
        yield (
            "costs.batch_price",
            "Nothing has a cost: no pool has a price.",
            "Add price: {input: 0.10, output: 0.40} to the pools (USD per million tokens).",
        )
