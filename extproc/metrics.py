"""Every metric of the processor, in one place. Labels are names from the config or fixed words."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from extproc.admission import CLASSES, Limiter
from extproc.backends import Servers
from extproc.cache import Caches, Stats
from extproc.costs import Ledger
from extproc.limits import NANO, Limits, Rules
from extproc.logs import dropped_lines

if TYPE_CHECKING:  # it needs packages that most do without
    from extproc.cache.semantic.cache import SemanticCache
    from extproc.judging import Judging

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TPOT_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)
_SAMPLES = 100  # of a piece: a millisecond of work


class Metrics:
    def __init__(
        self,
        limiters: Callable[[], Mapping[str, Limiter]],
        is_up: Callable[[str], bool],
        servers: Callable[[str], Servers],
        cache: Callable[[], Caches | None],
        ledger: Ledger,
        limits: Callable[[], tuple[Limits, Mapping[str, Rules]]],
    ) -> None:
        """`limits`: with the rules of the tenants that the policy names."""
        self.registry = CollectorRegistry()
        self.registry.register(_Now(limiters, is_up, servers, cache))
        self.registry.register(_Dollars(ledger))
        self.registry.register(_Limited(limits))
        self.decisions = self._counter(
            "forebay_decisions",
            "Requests by what the processor decided: admitted, or an error code of ours.",
            ["decision", "tenant"],
        )
        self.routes = self._counter(
            "forebay_routes",
            "Admitted requests by the pool that they were sent to first, and why.",
            ["pool", "reason"],
        )
        self.limited = self._counter(
            "forebay_limited",
            "Requests that a limit of their tenant refused: requests, tokens, concurrent, budget; "
            "away: Redis could not be asked.",
            ["limit", "tenant"],
        )
        self.cache = self._counter(
            "forebay_cache_requests",
            "Requests by what the caches did: hit, semantic_hit, collapsed (the answer to the same "
            "request, which was under way), miss, or bypass (not cacheable).",
            ["result", "tenant"],
        )
        self.semantic = self._counter(
            "forebay_semantic_lookups",
            "Look-ups in the semantic cache by what came of it; checked: a hit that the model "
            "answered, to compare.",
            ["outcome", "tenant"],
        )
        self.cache_stored = self._counter(
            "forebay_cache_stored", "Answers stored in the exact cache.", ["tenant"]
        )
        self.queue_wait = self._histogram(
            "forebay_queue_wait_seconds",
            "Time that admitted requests waited for a slot.",
            ["pool"],
            _SECONDS,
        )
        self.degraded = self._counter(
            "forebay_degraded",
            "Requests that were served otherwise than asked for, since their pool shed, and how.",
            ["pool", "way"],
        )
        self.capped = self._counter(
            "forebay_capped",
            "Requests whose limit of output tokens was lowered, and by what: the tenant's, or what "
            "fits before the deadline. (Shorter answers under overload: forebay_degraded.)",
            ["pool", "by"],
        )
        self.asked_to_stop = self._counter(
            "forebay_asked_to_stop",
            "Requests whose servers were asked to end them at the deadline.",
            ["pool"],
        )
        self.stopped = self._counter(
            "forebay_stopped",
            "Answers that were ended before their deadline, well-formed, and why: batch (an "
            "interactive request needed the slot), budget (the tenant's was spent).",
            ["pool", "reason"],
        )
        self.closed = self._counter(
            "forebay_closed_answers",
            "Streamed answers that the processor ended itself, marked incomplete, and why.",
            ["pool", "reason"],
        )
        self.answers = self._counter(
            "forebay_answers",
            "Answers to admitted requests by the pool that served, from Envoy's access log.",
            ["pool", "status", "tenant"],
        )
        self.refused = self._counter(
            "forebay_refused_tries",
            "Tries at a pool whose servers refused what the gateway sent: a wrong credential, "
            "model or path. The next tier may have answered.",
            ["pool", "status"],
        )
        self.endings = self._counter(
            "forebay_endings",
            "Answers to admitted requests by how they ended: see extproc.endings.",
            ["pool", "ending"],
        )
        self.attempts = self._counter(
            "forebay_attempts",
            "Upstream attempts made for admitted requests, by the pool that served last.",
            ["pool"],
        )
        self.tokens = self._counter(
            "forebay_tokens",
            "Tokens as the servers counted them; cached ones are also among the prompt's. "
            "prompt_estimated, completion_estimated: of answers that did not end, in no other.",
            ["pool", "tenant", "kind"],
        )
        self.ttft = self._histogram(
            "forebay_ttft_seconds",
            "Request to first body byte of streamed answers, queue included.",
            ["pool", "tenant"],
            _SECONDS,
        )
        self.tpot = self._histogram(
            "forebay_tpot_seconds",
            "Time per output token after the first, of streamed answers that ended.",
            ["pool", "tenant"],
            _TPOT_SECONDS,
        )
        self.learning_samples = self._counter(
            "forebay_learning_samples",
            "Requests that were drawn for routing.learning, by what became of them.",
            ["outcome"],
        )
        self.learning_usd = self._counter(
            "forebay_learning_usd", "What they cost, by the policy's prices.", []
        )
        self.loop_lag = self._histogram(
            "forebay_event_loop_lag_seconds",
            "How late the event loop came to a task that was due.",
            [],
            _LAG_SECONDS,
        )[()]
        self.reloads = self._counter(
            "forebay_config_reloads", "Changes of the config file, taken or refused.", ["result"]
        )
        self.reload_successful = Gauge(
            "forebay_config_last_reload_successful",
            "1 if the config file as it is now is the one in use.",
            registry=self.registry,
        )
        self.reload_successful.set(1)

    def pieces(self) -> Iterator[bytes]:
        """What /metrics shows, a millisecond of work at a time: with thousands of tenants all of it
        takes seconds."""
        for _, metrics in groupby(self.registry.collect(), lambda metric: metric.name):
            for n, metric in enumerate(metrics):
                text = generate_latest(_Only(metric))
                yield text.split(b"\n", 2)[2] if n else text  # what it is was said

    def _counter(self, name: str, text: str, labels: list[str]) -> "Counts":
        counts = Counts(name, text, labels)
        self.registry.register(_Counted(counts))
        return counts

    def _histogram(
        self, name: str, text: str, labels: list[str], bounds: tuple[float, ...]
    ) -> "Histograms":
        histograms = Histograms(name, text, labels, bounds)
        self.registry.register(_Counted(histograms))
        return histograms


# The library's own counters and histograms take a lock for each step and look their children up by
# string: together that cost an exchange as much as its routing. One event loop needs neither.


class Counts(dict[str | tuple[str, ...], float]):
    """A counter by its labels: `counts[pool] += 1`, `counts[pool, tenant] += 1`; `counts[()] += 1`
    where it has none."""

    def __init__(self, name: str, text: str, labels: list[str]) -> None:
        super().__init__()
        self.name, self.text, self.labels = name, text, labels

    def __missing__(self, labels: str | tuple[str, ...]) -> float:
        return 0

    def collect(self) -> Iterator[Metric]:
        return _in_pieces(
            lambda: CounterMetricFamily(self.name, self.text, labels=self.labels),
            [(_values(labels), count) for labels, count in self.items()],
        )


class Histograms(dict[str | tuple[str, ...], "Histogram"]):
    """Histograms by their labels: `histograms[pool].observe(seconds)`."""

    def __init__(self, name: str, text: str, labels: list[str], bounds: tuple[float, ...]) -> None:
        super().__init__()
        self.name, self.text, self.labels, self.bounds = name, text, labels, bounds

    def __missing__(self, labels: str | tuple[str, ...]) -> "Histogram":
        made = self[labels] = Histogram(self.bounds)
        return made

    def collect(self) -> Iterator[Metric]:
        return _in_pieces(
            lambda: HistogramMetricFamily(self.name, self.text, labels=self.labels),
            ((_values(labels), one.cumulative(), one.sum) for labels, one in [*self.items()]),
        )


class Histogram:
    """`bounds`: the upper ends of the buckets, ascending; one above the last is added."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


def _values(labels: str | tuple[str, ...]) -> tuple[str, ...]:
    return (labels,) if isinstance(labels, str) else labels


class _Counted(Collector):
    def __init__(self, counted: Counts | Histograms) -> None:
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        return self._counted.collect()


class _Only(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


_Row: TypeAlias = tuple[Any, ...]


def _in_pieces(family: Callable[[], Any], rows: Iterable[_Row]) -> Iterator[Metric]:
    """`rows`: what its add_metric takes, from nothing that may change meanwhile. At least one
    piece, for its name."""
    piece = family()
    for n, row in enumerate(rows):
        if n and len(piece.samples) >= _SAMPLES:
            yield piece
            piece = family()
        piece.add_metric(*row)
    yield piece


class _Dollars(Collector):
    """Kept by the ledger alone, and read from there when scraped."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        yield from _in_pieces(
            lambda: CounterMetricFamily(
                "forebay_cost_usd",
                "What the counted tokens cost by the prices of the policy.",
                labels=["tenant", "feature", "pool"],
            ),
            self._ledger.cost_usd().items(),
        )
        yield from _in_pieces(
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


class _Limited(Collector):
    """Read when scraped, of the tenants that the policy names."""

    def __init__(self, limits: Callable[[], tuple[Limits, Mapping[str, Rules]]]) -> None:
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        limits, named = self._limits()
        budgets = [(name, rules) for name, rules in named.items() if rules.budget]
        yield from _in_pieces(
            lambda: GaugeMetricFamily(
                "forebay_budget_usd",
                "What a tenant may spend in a day or month.",
                labels=["tenant"],
            ),
            (([name], rules.budget.most / NANO) for name, rules in budgets if rules.budget),
        )
        yield from _in_pieces(
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


class _Now(Collector):
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
