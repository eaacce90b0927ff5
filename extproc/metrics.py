"""Every metric of the processor, in one place. Labels are names from the config or fixed words."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from extproc.admission import Limiter

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TPOT_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


disable_created_metrics()


class Metrics:
    def __init__(self, pools: Mapping[str, Limiter]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_PoolGauges(pools))
        self.decisions = Counter(
            "forebay_decisions",
            "Requests by what the processor decided: admitted, or an error code of ours.",
            ["decision", "tenant"],
            registry=self.registry,
        )
        self.queue_wait = Histogram(
            "forebay_queue_wait_seconds",
            "Time that admitted requests waited for a slot.",
            ["pool"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.asked_to_stop = Counter(
            "forebay_asked_to_stop",
            "Requests whose servers were asked to end them at the deadline.",
            ["pool"],
            registry=self.registry,
        )
        self.answers = Counter(
            "forebay_answers",
            "Answers to admitted requests by the pool that served, from Envoy's access log.",
            ["pool", "status", "tenant"],
            registry=self.registry,
        )
        self.attempts = Counter(
            "forebay_attempts",
            "Upstream attempts made for admitted requests, by the pool that served last.",
            ["pool"],
            registry=self.registry,
        )
        self.tokens = Counter(
            "forebay_tokens",
            "Tokens as the servers counted them; cached ones are also among the prompt's.",
            ["pool", "tenant", "kind"],
            registry=self.registry,
        )
        self.ttft = Histogram(
            "forebay_ttft_seconds",
            "Request to first body byte of streamed answers, queue included.",
            ["pool"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.tpot = Histogram(
            "forebay_tpot_seconds",
            "Time per output token after the first, of streamed answers that ended.",
            ["pool"],
            buckets=_TPOT_SECONDS,
            registry=self.registry,
        )


class _PoolGauges(Collector):
    """Read from the limiters when scraped, so that a request pays nothing for them."""

    def __init__(self, pools: Mapping[str, Limiter]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[GaugeMetricFamily]:
        slots = GaugeMetricFamily("forebay_slots", "Configured slots.", labels=["pool"])
        held = GaugeMetricFamily("forebay_in_flight", "Slots leased now.", labels=["pool"])
        depth = GaugeMetricFamily("forebay_queue_depth", "Requests waiting here.", labels=["pool"])
        shedding = GaugeMetricFamily("forebay_shedding", "1 while shedding.", labels=["pool"])
        for name, pool in self._pools.items():
            slots.add_metric([name], pool.slots)
            held.add_metric([name], pool.in_flight)
            depth.add_metric([name], pool.depth)
            shedding.add_metric([name], float(pool.gate.shedding))
        yield from (slots, held, depth, shedding)
