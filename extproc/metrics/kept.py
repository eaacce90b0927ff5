"""Metrics of what other parts keep: looked up there when somebody asks, never counted twice."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.admission import CLASSES, Limiter
from extproc.backends import Servers
from extproc.cache import Caches, Stats
from extproc.costs import Ledger
from extproc.limits import NANO, Limits, Rules
from extproc.logs import dropped_lines
from extproc.metrics.counted import in_pieces

if TYPE_CHECKING:  # it needs packages that most do without
    from extproc.cache.semantic.cache import SemanticCache
    from extproc.judging import Judging


class Dollars(Collector):
    """Kept by the ledger alone, and read from there when scraped."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        yield from in_pieces(
            lambda: CounterMetricFamily(
                "forebay_cost_usd",
                "What the counted tokens cost by the prices of the policy.",
                labels=["tenant", "feature", "pool"],
            ),
            self._ledger.cost_usd().items(),
        )
        yield from in_pieces(
            lambda: CounterMetricFamily(
                "forebay_saved_usd",
                "What would have been paid more with a lever off; see /costs for the comparison.",
                labels=["tenant", "lever"],
            ),
            self._ledger.saved_usd().items(),
        )


class Judged(Collector):
    """How hard a request is: who says so now, and whether what was learned still holds."""

    def __init__(self, judging: "Callable[[], Judging]") -> None:
        self._judging = judging

    def collect(self) -> Iterator[Metric]:
        judging = self._judging()
        policy = GaugeMetricFamily(
            "forebay_difficulty_in_force",
            "1 for the policy of routing.difficulty that judges now.",
            labels=["policy"],
        )
        for name in ("off", "rules", "prior", "learned"):
            policy.add_metric([name], float(name == judging.in_force))
        index = GaugeMetricFamily(
            "forebay_difficulty_drift_index",
            "Learned: how far the last 1,000 scores are from the usual ones (0.25 is far).",
            labels=[],
        )
        drifted = GaugeMetricFamily(
            "forebay_difficulty_drifted",
            "Learned: 1 once the traffic has drifted away and prior judges instead.",
            labels=[],
        )
        if judging.drift is not None:
            drifted.add_metric([], float(judging.drift.found))
            if judging.drift.index is not None:
                index.add_metric([], judging.drift.index)
        yield from (policy, index, drifted)


class Limited(Collector):
    """Read when scraped, of the tenants that the policy names."""

    def __init__(self, limits: Callable[[], tuple[Limits, Mapping[str, Rules]]]) -> None:
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        limits, named = self._limits()
        budgets = [(name, rules) for name, rules in named.items() if rules.budget]
        yield from in_pieces(
            lambda: GaugeMetricFamily(
                "forebay_budget_usd",
                "What a tenant may spend in a day or month.",
                labels=["tenant"],
            ),
            (([name], rules.budget.most / NANO) for name, rules in budgets if rules.budget),
        )
        yield from in_pieces(
            lambda: GaugeMetricFamily(
                "forebay_budget_spent_usd",
                "Of it, what is spent or charged for running requests, as this processor knows.",
                labels=["tenant"],
            ),
            (([name], limits.spent_usd(name, rules)) for name, rules in budgets),
        )
        away = CounterMetricFamily(
            "forebay_limits_away",
            "Requests whose limits were decided without Redis, and how: see limits.when_away.",
            labels=["how"],
        )
        for how, count in limits.decided_away.items():
            away.add_metric([how], count)
        yield away
        shared = limits.shared
        if shared is not None:
            yield GaugeMetricFamily(
                "forebay_limits_store_up",
                "1 if Redis is asked for limits; 0 while it is taken to be away.",
                value=float(not shared.is_away),
            )
            yield GaugeMetricFamily(
                "forebay_limits_processors",
                "Processors that share the limits, as last seen.",
                value=shared.processors,
            )


class Now(Collector):
    """Read from limiters, backends and cache when scraped: a request pays nothing for them."""

    def __init__(
        self,
        limiters: Callable[[], Mapping[str, Limiter]],
        is_up: Callable[[str], bool],
        servers: Callable[[str], Servers],
        cache: Callable[[], Caches | None],
    ) -> None:
        self._limiters = limiters
        self._is_up = is_up
        self._servers = servers
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        slots = GaugeMetricFamily(
            "forebay_slots", "Slots of the replicas that are up.", labels=["pool"]
        )
        held = GaugeMetricFamily("forebay_in_flight", "Slots leased now.", labels=["pool"])
        depth = GaugeMetricFamily(
            "forebay_queue_depth",
            "Requests waiting here, but for batch, or in the servers beside ours.",
            labels=["pool"],
        )
        batch = GaugeMetricFamily(
            "forebay_batch_waiting", "Requests of class batch waiting here.", labels=["pool"]
        )
        queued = GaugeMetricFamily(
            "forebay_queue_bytes", "Memory held by requests waiting here.", labels=["pool"]
        )
        inherited = GaugeMetricFamily(
            "forebay_inherited_slots",
            "Slots still taken by what the servers ran when the processor started.",
            labels=["pool"],
        )
        leaked = GaugeMetricFamily(
            "forebay_leaked_leases",
            "Slots and places in the queue that have outlived their request: 0, or there is a bug.",
            labels=["pool"],
        )
        turns = CounterMetricFamily(
            "forebay_gate_transitions",
            "Times that shedding began or ended.",
            labels=["pool", "class"],
        )
        shedding = GaugeMetricFamily("forebay_shedding", "1 while shedding.", labels=["pool"])
        up = GaugeMetricFamily("forebay_pool_up", "1 if a replica answers.", labels=["pool"])
        mark = GaugeMetricFamily(
            "forebay_mark", "The marks, in waiting requests.", labels=["pool", "mark"]
        )
        replicas = GaugeMetricFamily(
            "forebay_replicas_up", "Replicas that answer.", labels=["pool"]
        )
        requests = GaugeMetricFamily(
            "forebay_server_requests",
            "Requests in the pool's servers, as these last said.",
            labels=["pool", "state"],
        )
        age = GaugeMetricFamily(
            "forebay_server_scrape_age_seconds",
            "Age of the oldest of these numbers.",
            labels=["pool"],
        )
        for name, pool in self._limiters().items():
            servers = self._servers(name)
            replicas.add_metric([name], servers.up)
            for state, count in (("running", servers.running), ("waiting", servers.waiting)):
                if count is not None:
                    requests.add_metric([name, state], count)
            if servers.scrape_age_s is not None:
                age.add_metric([name], servers.scrape_age_s)
            slots.add_metric([name], pool.slots)
            up.add_metric([name], float(self._is_up(name)))
            held.add_metric([name], pool.in_flight)
            depth.add_metric([name], pool.depth)
            batch.add_metric([name], pool.batch_waiting)
            queued.add_metric([name], pool.waiting_bytes)
            inherited.add_metric([name], pool.inherited)
            audit = pool.audit()
            leaked.add_metric([name], len(audit.leaked) + audit.drift)
            shedding.add_metric([name], float(pool.shedding))
            for word, gate in zip(CLASSES, pool.gates, strict=True):
                turns.add_metric([name, word], gate.transitions)
            mark.add_metric([name, "high_water"], pool.marks.high)
            mark.add_metric([name, "low_water"], pool.marks.low)
            mark.add_metric([name, "hard_water"], pool.marks.hard)
        yield from (
            up,
            replicas,
            slots,
            held,
            inherited,
            depth,
            batch,
            queued,
            leaked,
            shedding,
            turns,
            mark,
            requests,
            age,
        )
        yield CounterMetricFamily(
            "forebay_log_lines_dropped",
            "Log lines dropped since the log's reader stalled.",
            value=dropped_lines(),
        )
        caches = self._cache()
        if caches is not None:
            yield from _cache_metrics(caches.exact.store.stats())
            yield GaugeMetricFamily(
                "forebay_flights_under_way",
                "Requests to the models that identical ones may wait for.",
                value=caches.under_way,
            )
        yield from _semantic_metrics(None if caches is None else caches.semantic)


def _cache_metrics(stats: Stats) -> Iterator[Metric]:
    if stats.used_bytes is not None and stats.entries is not None:
        yield GaugeMetricFamily(
            "forebay_cache_bytes", "What the exact cache holds.", value=stats.used_bytes
        )
        yield GaugeMetricFamily(
            "forebay_cache_entries", "How many answers it holds.", value=stats.entries
        )
    if stats.kind == "redis":
        yield GaugeMetricFamily(
            "forebay_cache_store_up",
            "1 if Redis is asked; 0 while it is taken to be away.",
            value=stats.state == "up",
        )
        failed = CounterMetricFamily(
            "forebay_cache_store_failed",
            "Look-ups that were a miss, and writes that were lost, since Redis was not there.",
            labels=["why"],
        )
        for why, count in stats.failed.items():
            failed.add_metric([why], count)
        yield failed


def _semantic_metrics(semantic: "SemanticCache | None") -> Iterator[Metric]:
    """Named also where it is off, but without a number."""
    checked = CounterMetricFamily(
        "forebay_semantic_checked",
        "Semantic hits that the model answered too, and that were compared.",
        labels=[],
    )
    false = CounterMetricFamily(
        "forebay_semantic_false",
        "Of these, those with which the model did not agree.",
        labels=[],
    )
    unchecked = CounterMetricFamily(
        "forebay_semantic_unchecked",
        "Semantic hits that were to be compared and could not: too many at once, or no whole "
        "answer of the model.",
        labels=[],
    )
    off = GaugeMetricFamily(
        "forebay_semantic_tenants_off",
        "Tenants whose semantic cache is off, since too many of its hits were false.",
        labels=[],
    )
    if semantic is not None:
        checked.add_metric([], semantic.budget.checked)
        false.add_metric([], semantic.budget.disagreed)
        unchecked.add_metric([], semantic.unchecked)
        off.add_metric([], semantic.budget.scopes_off)
    yield from (checked, false, unchecked, off)
