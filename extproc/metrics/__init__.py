"""What Prometheus is told: `Metrics` counts, the rest is looked up where it is kept."""

from extproc.metrics.counted import Counts, Histograms
from extproc.metrics.kept import Judged
from extproc.metrics.metrics import SECONDS, TPOT_SECONDS, Metrics

__all__ = ["SECONDS", "TPOT_SECONDS", "Counts", "Histograms", "Judged", "Metrics"]
