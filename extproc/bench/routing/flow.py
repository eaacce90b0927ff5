"""The order of `forebay bench routing`, and what it has to show."""

from pathlib import Path

from extproc.bench.bars import verdict
from extproc.bench.lab import say
from extproc.bench.report import Result, machine
from extproc.bench.routing import quality, share, times
from extproc.bench.routing.data import FILE, read

_APGR = 0.65
_APGR_OF = ("pooled", "mmlu")
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
        "doubt": doubt(sets),
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
        *(_apgr_bar(sets, name) for name in _APGR_OF),
        verdict("share, error over any 2,000, points", farthest, "<=", _POINTS),
        verdict("decision, p99 of the slowest kind, ms", slowest, "<", _P99_MS),
    ]


def doubt(sets: list[quality.Told]) -> str | None:
    """Bars of APGR that other foldings of the same questions could decide otherwise."""
    near = [name for name in _APGR_OF if _is_near(_folded(sets, name))]
    if not near:
        return None
    return (
        f"APGR of learned, {' and '.join(near)}: so near the bar that it depends on how the "
        "questions fell into folds"
    )


def _is_near(told: quality.Told | None) -> bool:
    """Within two standard deviations of the mean of the foldings."""
    if told is None or told["by_folding_sd"] is None:
        return False
    return abs(told["apgr"]["learned"]["value"] - _APGR) < 2 * told["by_folding_sd"]


def _apgr_bar(sets: list[quality.Told], name: str) -> dict[str, object]:
    told = _folded(sets, name)
    value = told["apgr"]["learned"]["value"] if told else None
    return verdict(f"APGR of learned, {name}", value, ">=", _APGR, measured=told is not None)


def _folded(sets: list[quality.Told], name: str) -> quality.Told | None:
    """What was found for these questions, each scored by a model of the other folds."""
    for each in sets:
        if (each["questions"], each["learned_from"]) == (name, "folds"):
            return each
    return None
