"""Counters and histograms by their labels, and how what is long is collected in pieces.

The library's own take a lock for each step and look their children up by string: together that cost
an exchange as much as its routing. One event loop needs neither.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_SAMPLES = 100  # of a piece: a millisecond of work


class Counts(dict[str | tuple[str, ...], float]):
    """A counter by its labels: `counts[pool] += 1`, `counts[pool, tenant] += 1`; `counts[()] += 1`
    where it has none."""

    def __init__(self, name: str, text: str, labels: list[str]) -> None:
        super().__init__()
        self.name, self.text, self.labels = name, text, labels

    def __missing__(self, labels: str | tuple[str, ...]) -> float:
        return 0

    def collect(self) -> Iterator[Metric]:
        return in_pieces(
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
        return in_pieces(
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


class Counted(Collector):
    def __init__(self, counted: Counts | Histograms) -> None:
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        return self._counted.collect()


class Only(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


Row: TypeAlias = tuple[Any, ...]


def in_pieces(family: Callable[[], Any], rows: Iterable[Row]) -> Iterator[Metric]:
    """`rows`: what its add_metric takes, from nothing that may change meanwhile. At least one
    piece, for its name."""
    piece = family()
    for n, row in enumerate(rows):
        if n and len(piece.samples) >= _SAMPLES:
            yield piece
            piece = family()
        piece.add_metric(*row)
    yield piece
