"""How the results of `forebay bench routing` look: tables and a picture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from extproc.bench.report import Result, bars_table, left_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUTERS = ("random", "rules", "length", "prior", "learned")


def tables(result: Result) -> Iterator[Table]:
    if result["sets"]:
        yield _quality(result)
        yield _more(result)
    yield _share(result)
    yield _times(result)
    yield bars_table("What it has to show", result)
    yield from left_out(result)


def _quality(result: Result) -> Table:
    left_out = [
        f"The two subjects left out, {' and '.join(each['left_out'])}, hold "
        f"{each['left_out_part_of_gap']:.0%} of the gap."
        for each in result["sets"]
        if "left_out" in each
    ]
    table = Table(
        title="APGR (RouteLLM; 0.5: random order) and where 95% of the draws are",
        caption="Trained on: what the model that scores a question was trained on, never that "
        f"question. {' '.join(left_out)}",
        caption_justify="left",
    )
    for name in ("questions", "trained on", *ROUTERS):
        table.add_column(name)
    for each in result["sets"]:
        cells: list[str] = []
        for router in ROUTERS:
            of = each["apgr"][router]
            cells.append(f"{of['value']:.3f}\n{of['low']:.2f}-{of['high']:.2f}")
        table.add_row(f"{each['questions']}\n({each['count']:,})", each["learned_from"], *cells)
    return table


def _more(result: Result) -> Table:
    table = Table(title="APGR that learned has more, paired")
    for name in ("questions", "trained on", "than length", "than prior"):
        table.add_column(name)
    for each in result["sets"]:
        cells: list[str] = []
        for other in ("length", "prior"):
            of = each["learned_more_than"][other]
            cells.append(f"{of['value']:+.3f} [{of['low']:+.3f}, {of['high']:+.3f}]")
        table.add_row(each["questions"], each["learned_from"], *cells)
    return table


def _share(result: Result) -> Table:
    share = result["share"]
    shares = ", ".join(f"{each:.0%}" for each in share["shares"])
    cost = share["cost"]
    caption = cost and (
        f"With {cost['share']:.0%} large, the moving threshold recovers "
        f"{cost['recovered_by_moving']:.1%} of the gap, the best one, known afterwards, "
        f"{cost['recovered_by_best']:.1%}."
    )
    table = Table(
        title=f"Worst error of the share ({shares}) over any {share['over']:,} requests, points",
        caption=caption or None,
        caption_justify="left",
    )
    table.add_column("traffic")
    table.add_column("points", justify="right")
    for each in share["traffic"]:
        table.add_row(each["traffic"], f"{each['worst_error_points']:.2f}")
    return table


def _times(result: Result) -> Table:
    took = result["decision"]
    table = Table(title="CPU time of a decision, ms: p50 / p99")
    for name in ("prompt", "rules", "prior", "learned"):
        table.add_column(name, justify="left" if name == "prompt" else "right")
    for each in took["by_size"]:
        ways = (_spread(each[way]) for way in ("rules", "prior", "learned"))
        table.add_row(f"{each['chars']:,} characters", *ways)
    for each in took["made_to_be_slow"]:
        table.add_row(f"{each['chars']:,}: {each['of']}", "", "", _spread(each))
    return table


def _spread(of: dict[str, float]) -> str:
    return f"{of['p50_ms']:.3f} / {of['p99_ms']:.3f}"


def figure(result: Result) -> "Figure":
    """APGR of each way with its interval, by set of questions."""
    from matplotlib.figure import Figure  # here: nothing else needs it

    sets = result["sets"]
    drawn = Figure(figsize=(8, 0.9 * max(len(sets), 1) + 1.5), layout="constrained")
    axes = drawn.subplots()
    for number, router in enumerate(ROUTERS):
        those = [each["apgr"][router] for each in sets]
        values = [of["value"] for of in those]
        errors = [
            [of["value"] - of["low"] for of in those],
            [of["high"] - of["value"] for of in those],
        ]
        places = [row + (number - 2) * 0.15 for row in range(len(sets))]
        axes.errorbar(values, places, xerr=errors, fmt="o", markersize=4, label=router)
    axes.set_yticks(
        range(len(sets)), [f"{each['questions']}\nby {each['learned_from']}" for each in sets]
    )
    axes.invert_yaxis()
    axes.axvline(0.5, color="grey", linewidth=0.8)
    axes.set_xlabel("APGR")
    axes.spines[["top", "right"]].set_visible(False)
    if sets:
        drawn.legend(loc="outside upper center", ncols=len(ROUTERS), frameon=False)
    return drawn
