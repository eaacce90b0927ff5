"""Every metric of the processor, in one place. Labels are names from the config or fixed words."""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from extproc.admission import Limiter
from extproc.backends import Servers
from extproc.cache import Caches
from extproc.costs import Ledger
from extproc.limits import Limits, Rules
from extproc.metrics.counted import Counted, Counts, Histograms, Only
from extproc.metrics.kept import Dollars, Limited, Now

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TPOT_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)


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
        self.registry.register(Now(limiters, is_up, servers, cache))
        self.registry.register(Dollars(ledger))
        self.registry.register(Limited(limits))
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
            SECONDS,
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
            SECONDS,
        )
        self.tpot = self._histogram(
            "forebay_tpot_seconds",
            "Time per output token after the first, of streamed answers that ended.",
            ["pool", "tenant"],
            TPOT_SECONDS,
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
                text = generate_latest(Only(metric))
                yield text.split(b"\n", 2)[2] if n else text  # what it is was said

    def _counter(self, name: str, text: str, labels: list[str]) -> Counts:
        counts = Counts(name, text, labels)
        self.registry.register(Counted(counts))
        return counts

    def _histogram(
        self, name: str, text: str, labels: list[str], bounds: tuple[float, ...]
    ) -> Histograms:
        histograms = Histograms(name, text, labels, bounds)
        self.registry.register(Counted(histograms))
        return histograms
