"""What all exchanges share: the policy with its limiters and cache, the backends, the sums."""

import asyncio
import logging
import os
import time
from collections import defaultdict

from extproc.admission import Limiter, Marks, Slo, marks, needed_s, waiting_marks
from extproc.backends import Backends, Servers
from extproc.cache import Caches
from extproc.config import Config, LearningConfig, shared_secret
from extproc.costs import Budgeted, Ledger, cost_usd
from extproc.credential import Credential
from extproc.finished import Finished
from extproc.judging import changed_judging, make_judging
from extproc.limits import NANO, Cost, Limits, stop_streams
from extproc.metrics import Judged, Metrics
from extproc.openai import Request
from extproc.policy import Policy, enforced
from extproc.shadow import DaySpend, Shadow
from extproc.shadow.setup import judge_credential
from extproc.stores import changed_caches, changed_limits, make_caches, make_limits

_log = logging.getLogger(__name__)

# How old the servers' word on their load may be to be held against the leases of now; and after how
# long a word is not even remembered, since a gate must not stay shut for ever on it.
_FRESH_S = 3.0
_FORGOTTEN_S = 60.0
_CROWDED_S = 5  # in a row, before anybody is told
# Before any answer was counted.
_FIRST_COMPLETION_TOKENS = 256
# Of max_wait: a request for several slots that has waited so long is passed by no other any more.
_STARVING_SHARE = 0.5


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
        self._crowded: dict[str, int] = defaultdict(int)
        self._told: dict[str, tuple[int, int, int]] = {}
        """By pool: see Limiter.see_servers."""
        self._inherits_until = 0.0
        self.following_bytes = 0
        """Held of the bodies of requests that wait for the answer to another one."""
        self._own_secret = os.urandom(32)
        self.ledger = Ledger(time.time())
        self.limits = self._as_said(make_limits(config, self._clock), config)
        self._retiring: set[asyncio.Task[None]] = set()  # limits of before
        self.metrics = Metrics(
            lambda: self.policy.limiters,
            self.is_up,
            self.servers,
            lambda: self.policy.caches,
            self.ledger,
            lambda: (self.limits, self.policy.tenants.named_rules),
        )
        self.finished = Finished(
            lambda: self.policy,
            self.metrics,
            self.ledger,
            lambda: self.limits,
            self.backends.suspect,
        )
        self.judging = make_judging(config.routing.difficulty)
        self.metrics.registry.register(Judged(lambda: self.judging))
        self._drift_told = False
        self._spend = DaySpend()
        learning = config.routing.learning
        credential = None if learning is None else judge_credential(learning)
        caches = make_caches(config.cache, self._clock)
        self.policy = self._made(config, caches, self._salt_secret(config))
        self.shadow = self._made_shadow(learning, credential)
        """None: nothing is sampled."""

    async def start(self) -> None:
        """Watch the servers. What they work on already was admitted before we were here."""
        await self.backends.watch(self.policy.config.pools)
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
        named = self.policy.tenants.named_rules
        self.limits.keep_up([name for name, rules in named.items() if rules.budget])

        self._tell_of_drift()

    def _tell_of_drift(self) -> None:
        has_drifted = self.judging.drift is not None and self.judging.drift.found
        if has_drifted and not self._drift_told:
            _log.warning(
                "the traffic is no longer what routing.difficulty.model_file was compared on: "
                "`prior` judges instead; train again"
            )
        self._drift_told = has_drifted

    def tokens_estimate(self, pool: str, request: Request) -> int:
        """What the request will take of the pool's servers: its prompt, and for each answer as much
        as answers were long lately, within what it allows."""
        measured = self.finished.measured[pool].completion_tokens
        answer = measured.mean if measured.count else _FIRST_COMPLETION_TOKENS
        if request.max_tokens is not None:
            answer = min(answer, request.max_tokens)
        answers = request.sequences
        return request.prompt_tokens_estimate + int(answer) * answers

    def cost_estimate(self, pool: str, request: Request, *, batch: bool) -> Cost:
        """What it will use of its tenant's limits, as far as can be told before."""
        tokens = self.tokens_estimate(pool, request)
        config = self.policy.config
        price = config.pools[pool].price if pool in config.pools else None
        if price is None:
            return Cost(tokens, 0)
        prompt = min(request.prompt_tokens_estimate, tokens)
        factor = config.costs.batch_price if batch else 1.0
        return Cost(tokens, round(cost_usd(price, prompt, 0, tokens - prompt, factor) * NANO))

    def _as_said(self, limits: Limits, config: Config) -> Limits:
        """What may change while they are in use."""
        limits.configure(config.limits.when_away)
        limits.on_spent = lambda tenant_id: stop_streams(self._limiters.values(), tenant_id)
        return limits

    def budgets(self) -> list[Budgeted]:
        """Of the tenants that the policy names."""
        return [
            Budgeted(
                name,
                rules.budget.per,
                rules.budget.most / NANO,
                self.limits.spent_usd(name, rules),
            )
            for name, rules in self.policy.tenants.named_rules.items()
            if rules.budget
        ]

    async def configure(self, config: Config) -> None:
        """Go on with another config. Slots in use, cached answers and what tenants have used
        stay."""
        old, old_limits, learning = self.policy, self.limits, config.routing.learning
        # First: they may refuse.
        secret = self._salt_secret(config)
        judging = await asyncio.to_thread(changed_judging, self.judging, config.routing.difficulty)
        same_learning = self.shadow is not None and self.shadow.settings == learning
        credential = None
        if learning is not None and not same_learning:
            credential = await asyncio.to_thread(judge_credential, learning)
        limits = changed_limits(old_limits, old.config, config, self._clock)
        caches = changed_caches(old.caches, old.config.cache, config.cache, self._clock)
        await self.backends.watch(config.pools)
        self.judging = judging
        self.limits = self._as_said(limits, config)
        self.policy = self._made(config, caches, secret)
        self._replicas_changed()
        if not same_learning:
            before, self.shadow = self.shadow, self._made_shadow(learning, credential)
            if before is not None:
                await before.close()
        if old.caches is not None and old.caches is not caches:
            await old.caches.close()
        if old_limits is not limits:
            retiring = asyncio.create_task(old_limits.retire())
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        if self.shadow is not None:
            await self.shadow.close()
        await self.backends.close()
        if self.policy.caches is not None:
            await self.policy.caches.close()
        await self.limits.close()
        for retiring in (before := tuple(self._retiring)):
            retiring.cancel()
        await asyncio.gather(*before, return_exceptions=True)

    def _made(self, config: Config, caches: Caches | None, secret: bytes) -> Policy:
        limiters = {
            name: self._limiter(config, name, self._limiters.get(name)) for name in config.pools
        }
        in_use = {name: old for name, old in self._limiters.items() if old.in_flight or old.waiting}
        self._limiters = in_use | limiters
        return enforced(config, limiters, caches, self.judging.difficulty, secret)

    def _salt_secret(self, config: Config) -> bytes:
        """Without one that is shared, the salts of this process are its own, and what it filled of
        a prefix cache is no other's. ConfigError: see shared_secret."""
        salted = any(pool.cache_salt != "none" for pool in config.pools.values())
        return (shared_secret(config.cache) if salted else None) or self._own_secret

    def _made_shadow(
        self, learning: LearningConfig | None, credential: Credential | None
    ) -> Shadow | None:
        if learning is None:
            return None
        return Shadow(
            learning,
            credential,
            lambda: self.policy,
            self.backends.endpoint,
            self._spend,
            self.metrics.learning_samples,
            self.metrics.learning_usd,
        )

    def _limiter(self, config: Config, name: str, limiter: Limiter | None) -> Limiter:
        (slots, each), admission = self._slots(config, name), config.admission
        if limiter is None:
            limiter = Limiter(slots, Marks(0, 0, 0, ""), self._clock)
        limiter.set_slots(slots, each)
        limiter.set_queue(admission.max_wait * _STARVING_SHARE, admission.queue_bytes)
        batch = admission.batch
        stops = batch.when_needed == "stop"
        limiter.set_lane(batch.spare, config.response.grace if stops else None)
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
            first_token_s=self.finished.measured[name].first_token_s,
        )
        wait_s, for_batch = admission.batch.max_wait, None
        if wait_s is not None:
            lane = limiter.slots - limiter.spare
            for_batch = waiting_marks(wait_s, lane, limiter.service_s)
        limiter.set_marks(found, admission.dwell or 0.0, for_batch)

    def is_up(self, pool: str) -> bool:
        return self.backends.is_up(self.policy.config.pools[pool])

    def servers(self, pool: str) -> Servers:
        return self.backends.servers(self.policy.config.pools[pool])

    def status(self) -> dict[str, object]:
        """What /status shows."""
        config, down = self.policy.config, self.down
        slo = config.admission.slo
        return {
            "routing": self._routing_status(),
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
                    "batch_waiting": limiter.batch_waiting,
                    "queue_bytes": limiter.waiting_bytes,
                    "high_water": limiter.marks.high,
                    "low_water": limiter.marks.low,
                    "hard_water": limiter.marks.hard,
                    "why": limiter.marks.why,
                    "shedding": limiter.shedding,
                    "mean_service_s": _rounded(limiter.mean_service_s),
                    "service_scv": round(limiter.service_s.scv, 3),
                    "server_ttft_s": _rounded(needed_s(self.finished.measured[name].first_token_s)),
                }
                for name, limiter in self.policy.limiters.items()
            },
            "limits": self.limits.status(self.policy.tenants.named_rules),
        }

    def _routing_status(self) -> dict[str, object]:
        judging, shadow = self.judging, self.shadow
        status: dict[str, object] = {
            "difficulty": judging.settings.policy,
            "in_force": judging.in_force,
            "share": judging.share,
        }
        if judging.drift is not None:
            status["drift_index"] = judging.drift.index
            status["drifted"] = judging.drift.found
        if shadow is not None:
            status["learning"] = {
                "under_way": shadow.under_way,
                "usd_today": round(self._spend.today_usd(time.time()), 6),
                "usd_per_day": shadow.settings.usd_per_day,
            }
        return status


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
