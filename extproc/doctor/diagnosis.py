"""From what happened in a pool to findings: what is out of its SLO, by how much, and why. Pure.

Must never call out of its SLO what chance or a coarse bucket could have made look so.
"""

from dataclasses import dataclass
from typing import Literal

from extproc.doctor import causes
from extproc.doctor.advice import Cause
from extproc.doctor.histogram import Histogram, chance_of_so_many
from extproc.doctor.window import Window
from extproc.doctor.words import percentile, time

ENOUGH = 20
"""Answers to judge by."""
RARE = 0.01
"""A percentile is out if, did it hold, so many late answers had a smaller chance than this."""

Verdict = Literal["held", "out", "unsure", "too few"]


@dataclass(frozen=True, slots=True)
class Measure:
    """TTFT or TPOT of the streamed answers that ended."""

    name: Literal["TTFT", "TPOT"]
    verdict: Verdict
    answers: int
    late: int
    """At least; those in the bucket that the SLO lies in may be late as well."""
    value_s: float | None
    """At the SLO's percentile, interpolated in its bucket: see Histogram.quantile. None without
    answers, as are the next two."""
    bucket_s: tuple[float, float] | None
    """The ends of that bucket: all that is sure. The last one has no end."""
    mean_s: float | None
    slo_s: float


@dataclass(frozen=True, slots=True)
class Finding:
    measure: Measure
    cause: Cause


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Of one pool."""

    pool: str
    percentile: float
    measures: tuple[Measure, Measure]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def diagnose(window: Window) -> Diagnosis:
    level, slo, counts = window.slo.percentile, window.slo, window.gateway
    ttft = _measure("TTFT", counts.ttft, slo.ttft_s, level)
    tpot = _measure("TPOT", counts.tpot, slo.tpot_s, level)
    findings: list[Finding] = []
    if ttft.verdict == "out":
        cause = causes.of_ttft(window, tpot_held=tpot.verdict == "held")
        findings.append(Finding(ttft, cause))
    if tpot.verdict == "out":
        findings += [Finding(tpot, cause) for cause in causes.of_tpot(window)]
    notes = [_unsure(one, level) for one in (ttft, tpot) if one.verdict == "unsure"]
    if window.ever.refused and not window.refused:
        notes.append(
            f"its servers refused {window.ever.refused.total()} earlier tries and none in this "
            "time; --since-start says why"
        )
    busy = window.now.in_flight + window.now.queue_depth
    if ttft.verdict == "too few" and busy:
        notes.append(
            f"{window.now.in_flight} run and {window.now.queue_depth} wait, but few answers ended: "
            "watch for longer"
        )
    return Diagnosis(window.pool, level, (ttft, tpot), tuple(findings), (*notes, *window.notes))


def _measure(
    name: Literal["TTFT", "TPOT"], histogram: Histogram, slo_s: float, level: float
) -> Measure:
    answers, over = histogram.count, histogram.over(slo_s)
    if answers < ENOUGH:
        verdict: Verdict = "too few"
    elif chance_of_so_many(over.least, answers, 1 - level) < RARE:
        verdict = "out"
    elif chance_of_so_many(over.most, answers, 1 - level) < RARE:
        verdict = "unsure"
    else:
        verdict = "held"
    return Measure(
        name,
        verdict,
        round(answers),
        round(over.least),
        value_s=histogram.quantile(level) if answers else None,
        bucket_s=histogram.bucket(level) if answers else None,
        mean_s=histogram.mean,
        slo_s=slo_s,
    )


def _unsure(measure: Measure, level: float) -> str:
    return (
        f"whether {measure.name} holds {time(measure.slo_s)} cannot be told: {percentile(level)} "
        f"is about {time(measure.value_s or 0.0)}, in the same bucket of the histogram"
    )
