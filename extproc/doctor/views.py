"""A report for people, and for machines."""

from math import isfinite
from typing import Any

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from extproc.doctor.diagnosis import ENOUGH, Diagnosis, Finding, Measure
from extproc.doctor.run import Report
from extproc.doctor.troubles import Trouble
from extproc.doctor.words import percentile, time


def as_json(report: Report) -> str:
    """`{"well", "window_s", "troubles": [...], "pools": {NAME: {"ttft": {...}, "tpot": {...},
    "findings": [...], "notes": [...]}}}`; times in seconds, null for one without end, and for the
    pool of a trouble that the whole gateway has."""
    document = {
        "well": report.well,
        "window_s": report.window_s,
        "troubles": [
            {"pool": one.pool, "trouble": one.name, "evidence": one.evidence, "fix": one.fix}
            for one in report.troubles
        ],
        "pools": {one.pool: _pool(one) for one in report.pools},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _pool(one: Diagnosis) -> dict[str, Any]:
    return {
        "percentile": one.percentile,
        **{
            measure.name.lower(): {
                "verdict": measure.verdict,
                "answers": measure.answers,
                "late": measure.late,
                "value_s": measure.value_s,
                "bucket_s": measure.bucket_s,
                "mean_s": measure.mean_s,
                "slo_s": measure.slo_s,
            }
            for measure in one.measures
        },
        "findings": [
            {
                "out": finding.measure.name.lower(),
                "cause": finding.cause.name,
                "evidence": finding.cause.evidence,
                "fix": finding.cause.fix,
            }
            for finding in one.findings
        ],
        "notes": one.notes,
    }


def show(report: Report, console: Console) -> None:
    for trouble in report.troubles:
        _show_trouble(trouble, console)
    for pool in report.pools:
        for finding in pool.findings:
            _show_finding(pool, finding, console)
        for note in pool.notes:
            console.print(Text(f"note: {pool.pool}: {note}"), style="dim")
    if not any(pool.findings for pool in report.pools):
        console.print(Text(_summary(report)), soft_wrap=True)


def _show_trouble(trouble: Trouble, console: Console) -> None:
    of = f"{trouble.pool}: " if trouble.pool else ""
    console.print(Text(f"{of}{trouble.name}", "bold red"))
    _show_why(trouble.evidence, trouble.fix, console)


def _show_finding(pool: Diagnosis, finding: Finding, console: Console) -> None:
    measure = finding.measure
    console.print(
        Text.assemble(
            (f"{pool.pool}: {measure.name} is out of its SLO", "bold red"),
            f"; {measure.late} of {measure.answers} answers are late. {_numbers(pool, measure)}",
        )
    )
    cause = finding.cause
    _show_why(f"{cause.name}. {cause.evidence}", cause.fix, console)


def _show_why(why: str, fix: str, console: Console) -> None:
    for label, text in (("why", why), ("fix", fix)):
        console.print(Padding(Text.assemble((f"{label}: ", "bold"), text), (0, 0, 0, 2)))
    console.print()


def _summary(report: Report) -> str:
    verdicts = {one.verdict for pool in report.pools for one in pool.measures}
    when = "since the start" if report.window_s is None else f"in {report.window_s:.1f} s"
    pools = "; ".join(_of_pool(pool) for pool in report.pools)
    if "unsure" in verdicts:
        return f"nothing is surely out of its SLO {when}: {pools}"
    if "held" in verdicts:
        return f"{'all is well' if report.well else 'no SLO is broken'} {when}: {pools}"
    return f"too few streamed answers {when} to judge ({ENOUGH} are needed): {pools}"


def _of_pool(pool: Diagnosis) -> str:
    return f"{pool.pool} " + ", ".join(
        f"{one.name} of {one.answers} answers"
        if one.verdict == "too few"
        else f"{_numbers(pool, one)} ({one.answers} answers)"
        for one in pool.measures
    )


def _numbers(pool: Diagnosis, measure: Measure) -> str:
    low, high = measure.bucket_s or (0.0, 0.0)
    between = f"{time(low)} to {time(high)}" if isfinite(high) else f"over {time(low)}"
    return (
        f"{percentile(pool.percentile)} {measure.name} about {time(measure.value_s or 0.0)} "
        f"({between}), mean {time(measure.mean_s or 0.0)}, SLO {time(measure.slo_s)}"
    )
