"""What `forebay train-router` found, for people: two tables."""

from collections.abc import Iterator

from rich import box
from rich.table import Table

from extproc.learning.train import Result

_PARTS = {"earlier": "trained on", "later": "compared on"}


def tables(result: Result) -> Iterator[Table]:
    parts = Table(
        title=f"{result['requests']:,} requests, and what share of the answers was right",
        box=box.SIMPLE_HEAD,
    )
    parts.add_column("")
    for name in ("requests", "from", "to", "small", "large"):
        parts.add_column(name, justify="right", no_wrap=True)
    for key, name in _PARTS.items():
        part = result[key]
        shares = (f"{part[of]:.0%}" for of in ("small_right", "large_right"))
        times = (part[of][:16].replace("T", " ") for of in ("from", "to"))
        parts.add_row(name, f"{part['requests']:,}", *times, *shares)
    yield parts
    found = Table(
        title="APGR on the later requests (0.5: random order)",
        caption="In brackets where 95% of the bootstrap's draws are. On the earlier ones, "
        f"cross-validated, the model has {result['cross_validated_on_earlier_apgr']:.3f}: if that "
        "is much more, the traffic has changed since.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for name in ("", "APGR", "learned has more", "surely"):
        found.add_column(name)
    for name, of in result["later_apgr"].items():
        more = result["learned_more_than"].get(name)
        verdict = "" if more is None else "yes" if more["low"] > 0 else "NO"
        found.add_row(name, interval(of), "" if more is None else interval(more, "+"), verdict)
    yield found


def interval(of: dict[str, float], sign: str = "") -> str:
    value, low, high = (format(of[key], f"{sign}.3f") for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
