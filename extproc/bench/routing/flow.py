"""The order of `forebay bench routing`, and what it has to show."""

from pathlib import Path

from extproc.bench.bars import verdict
from extproc.bench.lab import say
from extproc.bench.report import Result, machine
from extproc.bench.routing import quality, share, times
from extproc.bench.routing.data import FILE, read

_APGR = 0.65
_POINTS = 4.0
_P99_MS = 0.3


def run(folder: Path) -> Result:
    """Raises BenchError."""
    questions = read(folder)
    skipped: dict[str, str] = {}
    sets: list[quality.Told] = []
    cost = learned = None
    if questions is None:
        skipped[FILE] = f"there is none in {folder}: no quality is measured"
        say(f"{FILE}: {skipped[FILE]}")
    else:
        sets, learned = quality.all_sets(questions)
        cost = share.cost(questions, learned)
    say("the share, on simulated traffic")
    kept = share.kept(questions, learned)
    say("the time of a decision")
    took = times.decisions()
    return {
        "bench": "routing",
        "machine": machine(),
        "skipped": skipped,
        "sets": sets,
        "share": {"over": share.OVER, "shares": share.SHARES, "traffic": kept, "cost": cost},
        "decision": took,
        "bars": _bars(sets, kept, took),
        "doubt": None,
    }


def _bars(
    sets: list[quality.Told], kept: list[share.Told], took: times.Told
) -> list[dict[str, object]]:
    slowest = max(
        *(each[way]["p99_ms"] for each in took["by_size"] for way in ("rules", "prior", "learned")),
        *(each["p99_ms"] for each in took["made_to_be_slow"]),
    )
    farthest = max(each["worst_error_points"] for each in kept)
    return [
        *(_apgr_bar(sets, name) for name in ("pooled", "mmlu")),
        verdict("share, error over any 2,000, points", farthest, "<=", _POINTS),
        verdict("decision, p99 of the slowest kind, ms", slowest, "<", _P99_MS),
    ]


def _apgr_bar(sets: list[quality.Told], name: str) -> dict[str, object]:
    found = [
        each["apgr"]["learned"]["value"]
        for each in sets
        if (each["questions"], each["learned_from"]) == (name, "folds")
    ]
    what = f"APGR of learned, {name}"
    return verdict(what, found[0] if found else None, ">=", _APGR, measured=bool(found))
