"""What all exchanges share: the policy with its limiters and cache, the backends, the metrics."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.accounting import read as read_account
from extproc.admission import Gate, Limiter
from extproc.backends import Backends, Servers
from extproc.cache import ExactCache
from extproc.config import Config, ExactCacheConfig
from extproc.metrics import Metrics
from extproc.tenants import Tenants
from extproc.wire import LogEntry


@dataclass(frozen=True, slots=True)
class Policy:
    """A config and what enforces it. An exchange keeps the one that it started with; limiters and
    cache outlive a change of the config."""

    config: Config
    tenants: Tenants
    limiters: Mapping[str, Limiter]
    cache: ExactCache | None
    sees_answers: bool
    """Some answer may have to pass by way of the processor: to be stored, or guarded."""
    uncounted: str
    """Pools whose streams Envoy must not count, `;large;hosted;`: see the filter of that name."""
    _model_names: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)

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


class Gateway:
    """`policy` is replaced as a whole by `configure`, never changed."""

    def __init__(self, config: Config) -> None:
        self._clock = asyncio.get_running_loop().time
        self.backends = Backends()
        self.pools_at_start = frozenset(config.pools)
        """What Envoy knows, if it started with the same file."""
        self._limiters: dict[str, Limiter] = {}
        """Those of the policy, and of pools that left it while they were in use."""
        self.policy = self._made(config, None)
        self.metrics = Metrics(
            lambda: self.policy.limiters, self.is_up, self.servers, lambda: self.policy.cache
        )

    async def start(self) -> None:
        await self.backends.watch(self.policy.config.pools.values())

    async def configure(self, config: Config) -> None:
        """Go on with another config. Slots in use and cached answers stay."""
        await self.backends.watch(config.pools.values())
        self.policy = self._made(config, self.policy.cache)

    def _made(self, config: Config, cache: ExactCache | None) -> Policy:
        limiters = {
            name: self._limiter(config, name, self._limiters.get(name)) for name in config.pools
        }
        in_use = {name: old for name, old in self._limiters.items() if old.in_flight or old.depth}
        self._limiters = in_use | limiters
        cache = self._cache(config.cache.exact, cache)
        return Policy(
            config,
            Tenants(config),
            limiters,
            cache,
            sees_answers=cache is not None or _guards(config),
            uncounted=_uncounted(config),
        )

    def _limiter(self, config: Config, name: str, limiter: Limiter | None) -> Limiter:
        slots, marks = config.pools[name].slots, config.admission
        if limiter is None:
            return Limiter(slots, Gate(marks.high_water, marks.low_water), self._clock)
        limiter.resize(slots, marks.high_water, marks.low_water)
        return limiter

    def _cache(self, exact: ExactCacheConfig | None, cache: ExactCache | None) -> ExactCache | None:
        if exact is None:
            return None
        if cache is None:
            return ExactCache(exact.max_bytes, exact.ttl, self._clock)
        cache.configure(exact.max_bytes, exact.ttl)
        return cache

    def account(self, entry: LogEntry) -> None:
        """Count one finished exchange from Envoy's access log."""
        account = read_account(entry.tags)
        if account is None:
            return
        known = self.policy.config
        pool = entry.served_by if entry.served_by in known.pools else "none"
        tenant = account.tenant if account.tenant in known.tenants else "default"
        metrics = self.metrics
        metrics.answers[pool, str(entry.status), tenant] += 1
        metrics.attempts[pool] += entry.attempts
        for kind, count in (
            ("prompt", account.prompt_tokens),
            ("cached", account.cached_tokens),
            ("completion", account.completion_tokens),
        ):
            if count:
                metrics.tokens[pool, tenant, kind] += count
        if entry.status == 200 and account.ttft_s is not None:
            metrics.ttft[pool, tenant].observe(account.ttft_s)
        if entry.status == 200 and account.tpot_s is not None:
            metrics.tpot[pool, tenant].observe(account.tpot_s)

    def is_up(self, pool: str) -> bool:
        return self.backends.is_up(self.policy.config.pools[pool])

    def servers(self, pool: str) -> Servers:
        return self.backends.servers(self.policy.config.pools[pool])

    def pools_down(self) -> list[str]:
        return [pool for pool in self.policy.config.pools if not self.is_up(pool)]

    def status(self) -> dict[str, object]:
        """What /status shows."""
        config, down = self.policy.config, self.pools_down()
        return {
            "pools": {
                name: {
                    "model": config.pools[name].model,
                    "up": name not in down,
                    **_shown(self.servers(name)),
                    "slots": limiter.slots,
                    "in_flight": limiter.in_flight,
                    "queue_depth": limiter.depth,
                    "high_water": limiter.gate.high_water,
                    "low_water": limiter.gate.low_water,
                    "shedding": limiter.gate.shedding,
                    "mean_service_s": limiter.mean_service_s and round(limiter.mean_service_s, 3),
                }
                for name, limiter in self.policy.limiters.items()
            }
        }


def _shown(servers: Servers) -> dict[str, object]:
    """A pool's servers in /status; null where they have not said."""
    age_s = servers.scrape_age_s
    return {
        "replicas": servers.replicas,
        "replicas_up": servers.up,
        "servers": {
            "running": servers.running,
            "waiting": servers.waiting,
            "scrape_age_s": age_s and round(age_s, 3),
        },
    }


def _guards(config: Config) -> bool:
    by_guard = any(pool.partial_by == "guard" for pool in config.pools.values())
    return by_guard and config.response.on_expiry == "partial"


def _uncounted(config: Config) -> str:
    others = [name for name, pool in config.pools.items() if pool.server == "other"]
    return f";{';'.join(others)};" if others else ""
