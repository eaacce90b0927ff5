"""What all exchanges share: the policy with its limiters and cache, the backends, the sums."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from extproc import logs
from extproc.accounting import Account
from extproc.accounting import read as read_account
from extproc.admission import Limiter, Marks, Running, Slo, marks, needed_s
from extproc.backends import Backends, Servers
from extproc.cache import Caches, Query, scope_of
from extproc.config import Config, Expiry, PoolConfig
from extproc.costs import Ledger
from extproc.endings import Suspicion, ending
from extproc.metrics import Metrics
from extproc.openai import Request
from extproc.routing import Plan, Router
from extproc.stores import changed_caches, make_caches
from extproc.tenants import Tenant, Tenants

_log = logging.getLogger(__name__)

# How old the servers' word on their load may be to be held against the leases of now; and after how
# long a word is not even remembered, since a gate must not stay shut for ever on it.
_FRESH_S = 3.0
_FORGOTTEN_S = 60.0
_CROWDED_S = 5  # in a row, before anybody is told
# Before any answer was counted.
_FIRST_COMPLETION_TOKENS = 256
# Of max_wait: a batch request that has waited so long goes before interactive ones.
_STARVING_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Policy:
    """A config and what enforces it. An exchange keeps the one that it started with; limiters and
    cache outlive a change of the config."""

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
    ) -> Plan:
        """Raises Unroutable."""
        return self.router.plan(
            model=request.model,
            last_user_text=request.last_user_text,
            tokens_needed=request.prompt_tokens_estimate + (request.max_tokens or 0),
            latency_budget_ms=latency_budget_ms,
            allowed=tenant.pools,
            down=down,
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


class Gateway:
    """`policy` is replaced as a whole by `configure`, never changed."""

    def __init__(self, config: Config) -> None:
        self._clock = asyncio.get_running_loop().time
        self.backends = Backends(self._replicas_changed, self._load_told)
        self.down: frozenset[str] = frozenset()
        """The pools of which no replica answers."""
        self.pools_at_start = frozenset(config.pools)
        """What Envoy knows, if it started with the same file."""
        self._limiters: dict[str, Limiter] = {}
        """Those of the policy, and of pools that left it while they were in use."""
        self._measured: dict[str, _Measured] = defaultdict(_Measured)
        self._crowded: dict[str, int] = defaultdict(int)
        self._told: dict[str, tuple[int, int, int]] = {}
        """By pool: see Limiter.see_servers."""
        self._suspicion = Suspicion(self.backends.suspect)
        self._inherits_until = 0.0
        self._log_is_other = False  # than what this version reads, and that was said
        self.policy = self._made(config, make_caches(config.cache, self._clock))
        self.ledger = Ledger(time.time())
        self.metrics = Metrics(
            lambda: self.policy.limiters,
            self.is_up,
            self.servers,
            lambda: self.policy.caches,
            self.ledger,
        )

    async def start(self) -> None:
        """Watch the servers. What they work on already was admitted before we were here."""
        await self.backends.watch(self.policy.config.pools.values())
        for name, limiter in self.policy.limiters.items():
            servers = self.servers(name)
            limiter.inherit((servers.running or 0) + (servers.waiting or 0))
        self._inherits_until = self._clock() + self.policy.config.longest_s

    def keep_up(self) -> None:
        """To be called once a second: hear what the servers say, put the marks where the
        measurements say, and look for leases that were never ended."""
        for name, limiter in self._limiters.items():
            if limiter.inherited and self._clock() > self._inherits_until:
                limiter.inherit(0)
            if name in self.policy.config.pools:
                self._hear_servers(name, limiter)
                self._set_marks(self.policy.config, name, limiter)
            audit = limiter.audit()
            for lease in audit.leaked:
                _log.error("a slot of %s leaked: request %s", name, lease.ask.owner)
            if audit.drift:
                _log.error("the books of %s are off by %d", name, audit.drift)

    def tokens_estimate(self, pool: str, request: Request) -> int:
        """What the request will take of the pool's servers: its prompt, and for each answer as much
        as answers were long lately, within what it allows."""
        measured = self._measured[pool].completion_tokens
        answer = measured.mean if measured.count else _FIRST_COMPLETION_TOKENS
        if request.max_tokens is not None:
            answer = min(answer, request.max_tokens)
        answers = request.sequences
        return request.prompt_tokens_estimate + int(answer) * answers

    async def configure(self, config: Config) -> None:
        """Go on with another config. Slots in use and cached answers stay."""
        old = self.policy
        # First: it may refuse.
        caches = changed_caches(old.caches, old.config.cache, config.cache, self._clock)
        await self.backends.watch(config.pools.values())
        self.policy = self._made(config, caches)
        self._replicas_changed()
        if old.caches is not None and old.caches is not caches:
            await old.caches.close()

    async def close(self) -> None:
        await self.backends.close()
        if self.policy.caches is not None:
            await self.policy.caches.close()

    def _made(self, config: Config, caches: Caches | None) -> Policy:
        limiters = {
            name: self._limiter(config, name, self._limiters.get(name)) for name in config.pools
        }
        in_use = {name: old for name, old in self._limiters.items() if old.in_flight or old.depth}
        self._limiters = in_use | limiters
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

    def _limiter(self, config: Config, name: str, limiter: Limiter | None) -> Limiter:
        (slots, each), admission = self._slots(config, name), config.admission
        if limiter is None:
            limiter = Limiter(slots, Marks(0, 0, 0, ""), self._clock)
        limiter.set_slots(slots, each)
        limiter.set_queue(admission.max_wait * _STARVING_SHARE, admission.queue_bytes)
        self._set_marks(config, name, limiter)
        return limiter

    def _slots(self, config: Config, name: str) -> tuple[int, int]:
        """Those of the replicas that are up, and of one. Never none: a request to a dead pool is to
        get its answer from Envoy, at once, and not to queue."""
        pool = config.pools[name]
        return pool.slots * max(self.backends.replicas_up(pool), 1), pool.slots

    def _replicas_changed(self) -> None:
        self.down = frozenset(pool for pool in self.policy.config.pools if not self.is_up(pool))
        for name, limiter in self.policy.limiters.items():
            limiter.set_slots(*self._slots(self.policy.config, name))

    def _load_told(self, url: str) -> None:
        """A replica has said how busy it is: kept beside what we have there at this moment."""
        pools, limiters = self.policy.config.pools, self.policy.limiters
        for name, pool in pools.items():
            if url in pool.endpoints:
                servers = self.backends.servers(pool)
                ours = sum(
                    limiters[other].sequences
                    for other in pools
                    if not set(pools[other].endpoints).isdisjoint(pool.endpoints)
                )
                self._told[name] = (servers.running or 0, servers.waiting or 0, ours)

    def _hear_servers(self, name: str, limiter: Limiter) -> None:
        """Once a second, so that two words are not of one moment. A word that is too old changes
        nothing, for a while."""
        age_s = self.backends.servers(self.policy.config.pools[name]).scrape_age_s
        if age_s is None or age_s >= _FORGOTTEN_S:
            self._told[name] = (0, 0, 0)
        elif age_s > _FRESH_S:
            return
        running, waiting, ours = self._told.get(name, (0, 0, 0))
        limiter.see_servers(running, waiting, ours)
        # Ours wait in there though they hold slots: their servers take fewer at once than we think.
        crowded = waiting > 0 and running + waiting <= ours
        self._crowded[name] = self._crowded[name] + 1 if crowded else 0
        if self._crowded[name] == _CROWDED_S:
            _log.warning(
                "pool %s: requests that hold slots wait in the servers, which run %d: set its "
                "slots to what each server takes at once (vLLM: --max-num-seqs)",
                name,
                running,
            )

    def _set_marks(self, config: Config, name: str, limiter: Limiter) -> None:
        admission = config.admission
        found = marks(
            admission.high_water,
            admission.low_water,
            admission.hard_water,
            slo=Slo(admission.slo.ttft, admission.slo.percentile),
            slots=limiter.slots,
            service_s=limiter.service_s,
            first_token_s=self._measured[name].first_token_s,
        )
        limiter.set_marks(found, admission.dwell or 0.0)

    def account(self, told: str) -> None:
        """Count one finished exchange from Envoy's access log."""
        account = read_account(told)
        if account is None:
            self._tell_of_other_log()
            return
        known = self.policy.config
        pool = account.served_by if account.served_by in known.pools else "none"
        tenant = account.tenant if account.tenant in known.tenants else "default"
        metrics = self.metrics
        metrics.answers[pool, str(account.status), tenant] += 1
        estimate = self._unfinished_tokens(pool, account)
        self._see_ending(pool, tenant, account, estimate)
        metrics.attempts[pool] += account.attempts
        for kind, count in (
            ("prompt", account.prompt_tokens),
            ("cached", account.cached_tokens),
            ("completion", account.completion_tokens),
        ):
            if count:
                metrics.tokens[pool, tenant, kind] += count
        if estimate:
            metrics.tokens[pool, tenant, "completion_estimated"] += estimate
        if pool in known.pools:
            self.ledger.answered(
                known,
                pool=pool,
                tenant=tenant,
                status=account.status,
                account=account,
                estimate=estimate,
            )
        if account.status == 200 and account.ttft_s is not None:
            metrics.ttft[pool, tenant].observe(account.ttft_s)
        if account.status == 200 and account.server_ttft_s is not None:
            self._measured[pool].first_token_s.add(account.server_ttft_s)
        if account.status == 200 and account.tpot_s is not None:
            metrics.tpot[pool, tenant].observe(account.tpot_s)
        self._settle(account)

    def _tell_of_other_log(self) -> None:
        if not self._log_is_other:
            self._log_is_other = True
            _log.error(
                "Envoy's access log does not say what is counted from it: no tokens, times and "
                "costs. Take custom_tags from this version's envoy.yaml; `forebay check` tells more"
            )

    def _unfinished_tokens(self, pool: str, account: Account) -> int:
        """About how many tokens a stream had that was not counted since it did not end: as many
        as its guard saw, or by its bytes and what a token of the pool's counted streams took. 0
        where there is nothing to estimate."""
        if not account.streamed or account.status != 200 or not account.body_bytes:
            return 0
        measured = self._measured[pool]
        if account.completion_tokens is not None:
            measured.stream_bytes.add(account.body_bytes)
            measured.stream_tokens.add(account.completion_tokens)
            return 0
        if account.completion_estimate is not None:
            return account.completion_estimate
        if not measured.stream_tokens.mean:
            return 0
        # Of means, not a mean of ratios: short streams are mostly what is beside the tokens.
        return round(account.body_bytes * measured.stream_tokens.mean / measured.stream_bytes.mean)

    def _see_ending(self, pool: str, tenant: str, account: Account, estimate: int) -> None:
        settings = self.policy.config.pools.get(pool)
        if settings is None:  # no server was tried
            return
        # What was never counted (another filter chain than the reference's) is no sign of an error.
        how = ending(
            account.status,
            account.details,
            account.flags,
            ended_by_us=account.ended_by_us,
            has_failed=account.has_failed,
            has_usage=account.completion_tokens is not None,
            usage_expected=account.streamed and self._measured[pool].stream_tokens.count > 0,
        )
        self.metrics.endings[pool, how] += 1
        if how != "whole":
            line = logs.ending_line()
            line |= {
                "ending": how,
                "status": account.status,
                "pool": pool,
                "tokens_estimated": estimate,
                "request_id": account.request_id,
                "tenant": tenant,
            }
            logs.append(line)
        if url := _endpoint(settings, account.upstream_host):
            self._suspicion.saw(url, how)

    def _settle(self, account: Account) -> None:
        """Of the tokens that were charged when the request was granted, what was too much or too
        little."""
        charge = account.charge
        if charge is None or account.completion_tokens is None:
            return
        answers = max(account.bill.answers, 1)
        self._measured[charge.pool].completion_tokens.add(account.completion_tokens / answers)
        limiter = self.policy.limiters.get(charge.pool)
        if limiter is not None:
            took = (account.prompt_tokens or 0) + account.completion_tokens
            share = self.policy.tenants.share_of(charge.payer)
            limiter.correct(charge.payer, share, took - charge.tokens)

    def is_up(self, pool: str) -> bool:
        return self.backends.is_up(self.policy.config.pools[pool])

    def servers(self, pool: str) -> Servers:
        return self.backends.servers(self.policy.config.pools[pool])

    def status(self) -> dict[str, object]:
        """What /status shows."""
        config, down = self.policy.config, self.down
        slo = config.admission.slo
        return {
            "slo": {"ttft_s": slo.ttft, "tpot_s": slo.tpot, "percentile": slo.percentile},
            "pools": {
                name: {
                    "model": config.pools[name].model,
                    "server": config.pools[name].server,
                    "endpoints": list(config.pools[name].endpoints),
                    "up": name not in down,
                    **_shown(self.servers(name)),
                    "slots": limiter.slots,
                    "in_flight": limiter.in_flight,
                    "oldest_s": _rounded(limiter.oldest_s()),
                    "inherited": limiter.inherited,
                    "queue_depth": limiter.depth,
                    "queue_bytes": limiter.waiting_bytes,
                    "high_water": limiter.marks.high,
                    "low_water": limiter.marks.low,
                    "hard_water": limiter.marks.hard,
                    "why": limiter.marks.why,
                    "shedding": limiter.shedding,
                    "mean_service_s": _rounded(limiter.mean_service_s),
                    "service_scv": round(limiter.service_s.scv, 3),
                    "server_ttft_s": _rounded(needed_s(self._measured[name].first_token_s)),
                }
                for name, limiter in self.policy.limiters.items()
            },
        }


def _endpoint(pool: PoolConfig, host: str) -> str | None:
    """Which of the pool's endpoints has the address `host` (ip:port, as Envoy logs it)."""
    if len(pool.endpoints) == 1 and host != "-":
        return pool.endpoints[0]  # its name may be another than its address
    return next((url for url in pool.endpoints if url.partition("://")[2] == host), None)


class _Measured:
    """What a pool's answers were like lately."""

    __slots__ = ("completion_tokens", "first_token_s", "stream_bytes", "stream_tokens")

    def __init__(self) -> None:
        self.first_token_s = Running()
        """From a slot to the first token."""
        self.completion_tokens = Running()
        self.stream_bytes, self.stream_tokens = Running(), Running()
        """Of each stream that was counted; bytes as sent to the client."""


def _shown(servers: Servers) -> dict[str, object]:
    """A pool's servers in /status; null where they have not said."""
    return {
        "replicas": servers.replicas,
        "replicas_up": servers.up,
        "servers": {
            "running": servers.running,
            "waiting": servers.waiting,
            "scrape_age_s": _rounded(servers.scrape_age_s),
        },
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _guards(config: Config) -> bool:
    by_guard = any(pool.partial_by == "guard" for pool in config.pools.values())
    return by_guard and any(expiry.partial for expiry in config.expiries)


def _uncounted(config: Config) -> str:
    others = [name for name, pool in config.pools.items() if pool.server == "other"]
    return f";{';'.join(others)};" if others else ""
