"""How the results of `forebay bench limits` look: a table and a picture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from extproc.bench.report import Result, bars_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: Result) -> Iterator[Table]:
    setup = result["setup"]
    table = Table(
        title=f"{setup['processors']} gateways, one Redis; {setup['per_minute']:,} requests a "
        f"minute allowed, {setup['offered']:g} times that offered",
        caption="bound: rate x time + burst, and while Redis is away what may come on top of it.",
        caption_justify="left",
    )
    for name in ("turn", "seconds", "offered", "granted", "rate x time", "burst", "bound"):
        table.add_column(name, justify="left" if name == "turn" else "right")
    for turn in result["turns"]:
        allowed = turn["rate_times_time"] + turn["burst"]
        table.add_row(
            turn["turn"],
            f"{turn['lasted_s']:.1f}",
            f"{turn['offered']:,}",
            f"{turn['granted']:,}",
            f"{turn['rate_times_time']:,.1f}",
            f"{turn['burst']:,.1f}",
            f"{allowed + turn['slack']:,.1f}",
        )
    yield table
    away = result["turns"][1]
    rate = setup["per_minute"] / 60
    apart = Table(title="While Redis is away", show_header=False)
    apart.add_row("granted a second", f"{away['granted_while_away'] / away['away_s']:.2f}")
    apart.add_row("the limit, a second", f"{rate:.2f}")
    apart.add_row("decided without Redis", f"{away['decided_alone']:,}")
    yield apart
    yield bars_table("What it has to show", result)


def figure(result: Result) -> "Figure":
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8, 4))
    axes = drawn.add_subplot()
    for turn in result["turns"]:
        axes.plot(turn["granted_each_second"], label=turn["turn"])
    axes.axhline(result["setup"]["per_minute"] / 60, linestyle=":", color="black", label="limit")
    axes.set_xlabel("seconds")
    axes.set_ylabel("granted in each second")
    axes.legend()
    return drawn
