"""What an exchange keeps from its start to its end: the config, and what enforces it.

Never changed: another config makes another policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.admission import Limiter
from extproc.cache import ExactCache
from extproc.config import Config, Expiry
from extproc.routing import Router
from extproc.tenants import Tenants


@dataclass(frozen=True, slots=True)
class Policy:
    """See `enforced`. Limiters and cache outlive a change of the config."""

    config: Config
    tenants: Tenants
    router: Router
    limiters: Mapping[str, Limiter]
    cache: ExactCache | None
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

    def all_guarded(self, tiers: tuple[str, ...]) -> bool:
        """Whether a stream of whichever tier serves passes by way of us, to be ended by us."""
        if not self.guards:
            return False
        return all(self.config.pools[tier].partial_by == "guard" for tier in tiers)


def enforced(config: Config, limiters: Mapping[str, Limiter], cache: ExactCache | None) -> Policy:
    guards = _guards(config)
    return Policy(
        config,
        Tenants(config),
        Router(config.pools, config.routing),
        limiters,
        cache,
        guards=guards,
        sees_answers=cache is not None or guards,
        may_shorten="shorter" in config.admission.on_overload,
        uncounted=_uncounted(config),
    )


def _guards(config: Config) -> bool:
    by_guard = any(pool.partial_by == "guard" for pool in config.pools.values())
    return by_guard and any(expiry.partial for expiry in config.expiries)


def _uncounted(config: Config) -> str:
    others = [name for name, pool in config.pools.items() if pool.server == "other"]
    return f";{';'.join(others)};" if others else ""
