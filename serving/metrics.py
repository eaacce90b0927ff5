"""Counts what the engine did and shows it at /metrics under vLLM's names.

`Stats` is plain numbers, cheap per token; Prometheus objects exist only while a scrape is answered.
Must never influence scheduling.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from serving.engine import Engine, Event, Sequence

# Bucket bounds as vLLM has them, in seconds and in tokens.
_TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


_STEP_TOKENS_BOUNDS = tuple(float(2**power) for power in (0, *range(3, 15)))


def _token_bounds(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to `most`."""
    series = (mantissa * 10**power for power in range(len(str(most))) for mantissa in (1, 2, 5))
    return tuple(float(bound) for bound in series if bound <= most)


class _Histogram:
    """Counts per bucket and the sum of all values."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound as text, values up to it) for each bucket, and the sum."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        return buckets, self._sum


class Stats:
    """What has happened since the start, one entry per sequence (as vLLM counts: n choices of
    one request are n sequences). A cancelled sequence (client gone) counts as "abort". Histograms
    named after a request get theirs when it ends, as in vLLM."""

    def __init__(self, *, max_model_len: int) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.ends = {"stop": 0, "length": 0, "abort": 0}
        self.ttft_s = _Histogram(_TTFT_BOUNDS)
        self.inter_token_s = _Histogram(_PER_TOKEN_BOUNDS)
        self.e2e_s = _Histogram(_REQUEST_BOUNDS)
        self.queue_s = _Histogram(_REQUEST_BOUNDS)
        self.prefill_s = _Histogram(_REQUEST_BOUNDS)
        self.decode_s = _Histogram(_REQUEST_BOUNDS)
        self.time_per_output_token_s = _Histogram(_PER_TOKEN_BOUNDS)
        self.request_prompt_tokens = _Histogram(_token_bounds(max_model_len))
        self.step_tokens = _Histogram(_STEP_TOKENS_BOUNDS)

    def count_step(self, events: Iterable[Event], now: float) -> None:
        """Count the tokens and ends of one engine step. Nearly all of its sequences got the token
        before in the same earlier step, so runs of one interval are counted together.

        As vLLM does, a step counts only if it told a token, and a prompt belongs whole to the step
        that told its first one."""
        gap_s, gaps = 0.0, 0
        step_tokens = 0
        for sequence, tokens, fresh, _ in events:
            if not fresh:
                continue
            step_tokens += 1
            if tokens == 1:
                step_tokens += sequence.prompt_tokens - sequence.cached_tokens
                self._count_first_token(sequence, now)
            else:
                if sequence.gap_s != gap_s:
                    self._count_gaps(gap_s, gaps)
                    gap_s, gaps = sequence.gap_s, 0
                gaps += 1
            if sequence.ended:
                self.count_end(sequence)
        self._count_gaps(gap_s, gaps)
        if step_tokens:
            self.step_tokens.observe(step_tokens)

    def _count_gaps(self, gap_s: float, times: int) -> None:
        if times:
            self.generation_tokens += times
            self.inter_token_s.observe(gap_s, times)

    def _count_first_token(self, sequence: Sequence, now: float) -> None:
        self.prompt_tokens += sequence.prompt_tokens
        self.cached_tokens += sequence.cached_tokens
        if not sequence.is_vector:
            self.generation_tokens += 1
            self.ttft_s.observe(now - sequence.arrived_at)

    def count_end(self, sequence: Sequence) -> None:
        """Count a sequence that has just ended, in whatever way."""
        if sequence.ended is None or sequence.ended_at is None:
            raise ValueError("this sequence has not ended")
        self.ends[sequence.ended] += 1
        self.e2e_s.observe(sequence.ended_at - sequence.arrived_at)
        self.request_prompt_tokens.observe(sequence.prompt_tokens)
        if sequence.admitted_at is not None and sequence.first_token_at is not None:
            self.queue_s.observe(sequence.admitted_at - sequence.arrived_at)
            self.prefill_s.observe(sequence.first_token_at - sequence.admitted_at)
            decode_s = sequence.ended_at - sequence.first_token_at
            self.decode_s.observe(decode_s)
            if sequence.tokens > 1:
                self.time_per_output_token_s.observe(decode_s / (sequence.tokens - 1))


class Metrics:
    """The text of /metrics; reads the engine and the stats when asked."""

    def __init__(self, engine: Engine, stats: Stats, *, model_name: str) -> None:
        self._engine = engine
        self._stats = stats
        self._labels = {"model_name": model_name, "engine": "0"}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client calls for a scrape."""
        engine, stats = self._engine, self._stats
        yield self._gauge("num_requests_running", "Sequences that run.", len(engine.running))
        yield self._gauge("num_requests_waiting", "Sequences that wait.", len(engine.waiting))
        used = 1 - engine.blocks.free / engine.blocks.total
        yield self._gauge("kv_cache_usage_perc", "KV blocks in use, 1 = all.", used)
        for name, help_text, count in (
            ("prefix_cache_queries", "Prompt tokens looked up.", engine.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found.", engine.prefix_hits),
            ("num_preemptions", "Sequences that lost their blocks.", engine.preemptions),
            ("prompt_tokens_cached", "Cached prompt tokens.", stats.cached_tokens),
        ):
            yield self._counter(name, help_text, count)
        yield self._counter("prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield self._ends()
        for name, histogram in (
            ("time_to_first_token", stats.ttft_s),
            ("inter_token_latency", stats.inter_token_s),
            ("request_time_per_output_token", stats.time_per_output_token_s),
            ("e2e_request_latency", stats.e2e_s),
            ("request_queue_time", stats.queue_s),
            ("request_prefill_time", stats.prefill_s),
            ("request_decode_time", stats.decode_s),
        ):
            yield self._histogram(f"{name}_seconds", histogram)
        yield self._histogram("request_prompt_tokens", stats.request_prompt_tokens)
        yield self._histogram("iteration_tokens_total", stats.step_tokens)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", help_text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _ends(self) -> Metric:
        labels = [*self._labels, "finished_reason"]
        family = CounterMetricFamily("vllm:request_success", "Ended sequences.", labels=labels)
        for reason, count in self._stats.ends.items():
            family.add_metric([*self._labels.values(), reason], count)
        return family

    def _histogram(self, name: str, histogram: _Histogram) -> Metric:
        title = name.replace("_", " ").capitalize() + "."
        family = HistogramMetricFamily(f"vllm:{name}", title, labels=list(self._labels))
        buckets, total = histogram.cumulative()
        family.add_metric(list(self._labels.values()), buckets, total)
        return family
