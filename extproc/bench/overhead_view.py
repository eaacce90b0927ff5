"""How the result of `forebay bench overhead` looks: tables and a picture."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.table import Table

from extproc.bench.report import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: Result) -> Iterable[Table]:
    contenders: dict[str, dict[str, Any]] = result["contenders"]
    cpu = Table(title="CPU per request at saturation, microseconds (medians over the rounds)")
    for title in ("", "Envoy", "processor", "proxy", "all", "requests/s", "answers", "MiB", "+MiB"):
        cpu.add_column(title, justify="right" if title else "left")
    for name, told in contenders.items():
        start, end = told["memory_mib_at_start"], told["memory_mib_at_end"]
        cpu.add_row(
            name,
            *(_number(told.get(f"{part}_cpu_us")) for part in ("envoy", "processor", "proxy")),
            _number(told["all_cpu_us"]),
            _number(told["requests_per_s"]),
            str(told["answers"]),
            _number(end),
            _number(None if end is None else end - start, 1),
        )
    yield cpu
    rates = result["settings"]["rates_per_s"]
    times = Table(title="Latency, ms; in brackets what it has more than plain Envoy")
    times.add_column("")
    for rate in rates:
        for p in (50, 99):
            times.add_column(f"p{p} at {rate}/s", justify="right")
    times.add_column("p50 at saturation", justify="right")
    for name, told in contenders.items():
        cells: list[str] = []
        for rate in rates:
            for p in (50, 99):
                more = told.get(f"added_p{p}_ms_at_{rate}")
                added = "" if more is None else f" ({more:+.2f})"
                cells.append(f"{told[f'p{p}_ms_at_{rate}']:.2f}{added}")
        times.add_row(name, *cells, f"{told['p50_ms_at_saturation']:.2f}")
    yield times
    yield ratios(result)
    for name, why in result["skipped"].items():
        note = Table(title=f"{name} was skipped: {why}", show_header=False)
        yield note


def ratios(result: Result) -> Table:
    """The ratios that have a bar, each with its verdict."""
    table = Table(title="Ratios (median over the rounds; lowest and highest round)")
    for title in ("", "measured", "rounds", "bar", "holds"):
        table.add_column(title, justify="right" if title in ("measured", "rounds") else "left")
    for ratio in result["ratios"]:
        value = ratio["value"]
        table.add_row(
            ratio["what"],
            _number(value, 2),
            "" if value is None else f"{ratio['lowest']:.2f} to {ratio['highest']:.2f}",
            f"{ratio['wanted']} {ratio['bar']:g}",
            {True: "yes", False: "NO", None: "not measured"}[ratio["holds"]],
        )
    return table


def figure(result: Result) -> "Figure":
    """Stacked bars of the CPU per request, by process."""
    from matplotlib.figure import Figure  # here: nothing else needs it

    contenders: dict[str, dict[str, Any]] = result["contenders"]
    names = list(contenders)
    drawn = Figure(figsize=(8, 0.5 * len(names) + 1.5))
    axes = drawn.subplots()
    left = [0.0] * len(names)
    for part, colour in (("envoy", "#7f8c9b"), ("processor", "#2a6fb0"), ("proxy", "#b0562a")):
        widths = [contenders[name].get(f"{part}_cpu_us", 0.0) for name in names]
        axes.barh(names, widths, left=left, label=part, color=colour)
        left = [sum(both) for both in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("CPU per request at saturation, microseconds")
    axes.legend(frameon=False)
    return drawn


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
