"""One text of Prometheus' format, by name: counters, gauges and histograms, summed over labels.

Not for the hot path: the library parses all of it. Must never guess at what a text does not have:
that is 0 with a count of 0, and whoever judges looks at the count.
"""

from collections import Counter
from math import isfinite

from prometheus_client.parser import text_string_to_metric_families

from extproc.doctor.histogram import NONE, Histogram

_Labels = dict[str, str]


class Samples:
    """ValueError if the text is not Prometheus' format 0.0.4."""

    def __init__(self, text: str) -> None:
        self._by_name: dict[str, list[tuple[_Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                named = self._by_name.setdefault(sample.name, [])
                named.append((sample.labels, float(sample.value)))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def total(self, name: str, **labels: str) -> float:
        return sum(value for _, value in self._of(name, labels))

    def by(self, label: str, name: str, **labels: str) -> Counter[str]:
        """The totals by the values of one more label."""
        totals: Counter[str] = Counter()
        for has, value in self._of(name, labels):
            totals[has[label]] += round(value)
        return totals

    def highest(self, name: str) -> float | None:
        values = [value for _, value in self._of(name, {}) if isfinite(value)]
        return max(values, default=None)

    def histogram(self, name: str, **labels: str) -> Histogram:
        upto: dict[float, float] = {}
        for has, value in self._of(f"{name}_bucket", labels):
            bound = float(has["le"])
            upto[bound] = upto.get(bound, 0.0) + value
        if not upto:
            return NONE
        return Histogram.of_cumulative(upto, self.total(f"{name}_sum", **labels))

    def _of(self, name: str, labels: _Labels) -> list[tuple[_Labels, float]]:
        wanted = labels.items()
        return [one for one in self._by_name.get(name, ()) if wanted <= one[0].items()]
