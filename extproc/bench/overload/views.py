"""How the result of `forebay bench overload` looks: tables and a picture."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rich.table import Table

from extproc.bench.report import Result, bars_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "envoy": "tab:red",
    "adaptive-concurrency": "tab:orange",
    "admission-control": "tab:pink",
    "fixed-threshold": "tab:gray",
    "forebay": "tab:blue",
}
_DASHED = ("admission-control", "fixed-threshold")
"""They may lie on the line of another."""
_Turn = dict[str, Any]


def tables(result: Result) -> Iterable[Table]:
    capacity, settings, served = result["capacity"], result["settings"], result["service"]
    yield _by_load(
        result,
        "Goodput, of capacity",
        lambda turn: f"{turn['goodput_of_capacity']:.2f}",
        f"Capacity: {capacity['per_s']:.2f} answers/s within {settings['slo_ttft_s']:g} s to the "
        f"first token, the best of the sweep ({capacity['contender']} at "
        f"{capacity['load_of_nominal']:g} of {settings['nominal_per_s']:.2f}/s). "
        f"{settings['slots']} slots; service times: mean {_number(served['mean_s'])} s, SCV "
        f"{_number(served['scv'])}.",
    )
    yield _by_load(
        result,
        "TTFT of accepted requests, p50 / p99, seconds",
        lambda turn: (
            f"{_number(turn['ttft_p50_s'])} / {_number(turn['ttft_p99_s'])}"
            f"{'+' if turn['ttft_at_least'] else ''}"
        ),
        "+: some had none before they gave up or the turn ended, so these are lower bounds.",
    )
    yield _by_load(
        result,
        "Share refused",
        lambda turn: "" if turn["shed_share"] is None else f"{turn['shed_share']:.0%}",
    )
    yield _test(result)
    yield bars_table("What is wanted of Forebay", result)


def _by_load(
    result: Result, title: str, cell: Callable[[_Turn], str], caption: str | None = None
) -> Table:
    contenders: dict[str, Any] = result["contenders"]
    table = Table(title=title, caption=caption, caption_justify="left")
    table.add_column("load, of capacity", no_wrap=True)
    for turn in next(iter(contenders.values()))["turns"]:
        table.add_column(f"{turn['load']:g}", justify="right", no_wrap=True)
    for name, told in contenders.items():
        table.add_row(name, *(cell(turn) for turn in told["turns"]))
    return table


def _test(result: Result) -> Table:
    settings = result["settings"]
    table = Table(
        title=f"The overload test, {settings['test_seconds']:g} s",
        caption="normal: from which request of a light load after it on, none was refused or "
        "late. on/off: how often the gate began or ended to shed, where that is counted.",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for title in ("good/s", "tokens/s", "failed", "on/off", "normal after"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, told in result["contenders"].items():
        turn = next(turn for turn in told["turns"] if "recovery_s" in turn)
        recovery_s = turn["recovery_s"]
        table.add_row(
            name,
            _number(turn["goodput_per_s"]),
            _number(turn["goodput_tokens_per_s"], 0),
            f"{turn['failed_share'] or 0:.0%}",
            _number(turn["transitions"], 0),
            f"over {settings['light_seconds']:g} s"
            if recovery_s is None
            else f"{recovery_s:.1f} s",
        )
    return table


def figure(result: Result) -> "Figure":
    """Goodput, p99 TTFT and the share refused, over the load."""
    from matplotlib.figure import Figure  # here: nothing else needs it

    settings = result["settings"]
    drawn = Figure(figsize=(13, 4.2), layout="constrained")
    goodput, ttft, shed = drawn.subplots(1, 3)
    _lines(goodput, result, "goodput_per_s")
    goodput.axhline(result["capacity"]["per_s"], color="black", linestyle=":", label="capacity")
    goodput.set(title="Goodput", ylabel="answers/s within the SLO", ylim=(0, None))
    goodput.legend(frameon=False, fontsize="small")
    _lines(ttft, result, "ttft_p99_s")
    ttft.axhline(settings["slo_ttft_s"], color="black", linestyle=":", label="SLO")
    ttft.set(title="p99 TTFT of accepted requests", ylabel="s", yscale="log")
    ttft.legend(*_named(ttft, "SLO"), frameon=False, fontsize="small")
    _lines(shed, result, "shed_share")
    shed.set(title="Refused", ylabel="share of requests", ylim=(-0.02, 1))
    for axes in (goodput, ttft, shed):
        axes.set_xlabel("load, of capacity")
        axes.grid(alpha=0.3)
    return drawn


def _lines(axes: "Axes", result: Result, measure: str) -> None:
    for name, told in result["contenders"].items():
        points = [(t["load"], t[measure]) for t in told["turns"] if t[measure] is not None]
        style = "o--" if name in _DASHED else "o-"
        axes.plot(*zip(*points, strict=True), style, ms=3, color=_COLOURS[name], label=name)


def _named(axes: "Axes", label: str) -> tuple[list[Any], list[Any]]:
    handles, labels = axes.get_legend_handles_labels()
    return [handles[labels.index(label)]], [label]


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
