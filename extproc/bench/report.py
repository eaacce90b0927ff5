"""What every benchmark ends with: a table for people, JSON for machines, a picture on request."""

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.table import Table

from extproc.extras import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]
"""Of JSON's types alone: {"bench": name, "machine": {...}, ...}; names carry units."""

_ENDINGS = (".svg", ".png", ".pdf")


def _fail(message: str) -> NoReturn:
    typer.echo(f"forebay: {message}", err=True)
    raise typer.Exit(1)


def _drawable(plot: Path | None) -> Path | None:
    """The path as given; ends the command before minutes are spent on what cannot be drawn."""
    if plot is None:
        return None
    if plot.suffix.lower() not in _ENDINGS:
        _fail(f"--plot {plot}: a picture's name ends in {', '.join(_ENDINGS)}")
    if not plot.parent.is_dir():
        _fail(f"--plot {plot}: there is no folder {plot.parent}; make it first")
    if not os.access(plot.parent, os.W_OK):
        _fail(f"--plot {plot}: the folder {plot.parent} may not be written to")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        _fail(f"--plot needs matplotlib: {install('bench')}")
    return plot


# Typer itself refuses a folder and a file that may not be written.
Plot = Annotated[
    Path | None,
    typer.Option(
        help="Also draw it: FILE.svg, .png or .pdf.",
        dir_okay=False,
        writable=True,
        callback=_drawable,
    ),
]
"""The option --plot of every benchmark."""

Json = Annotated[bool, typer.Option("--json", help="For machines.")]
"""The option --json of every benchmark."""


def machine() -> Result:
    """What the numbers were taken on; belongs in every result."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "forebay": version("forebay"),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def left_out(result: Result) -> Iterator[Table]:
    """What was not measured, and why; nothing, if all was."""
    if result["skipped"]:
        table = Table(title="Left out", show_header=False)
        for name, why in result["skipped"].items():
            table.add_row(name, why)
        yield table


def bars_table(title: str, result: Result) -> Table:
    """What is wanted (see bars.verdict), and in red why not to trust it."""
    table = Table(
        title=title, caption=result["doubt"], caption_justify="left", caption_style="bold red"
    )
    for name in ("", "measured", "bar", "holds"):
        table.add_column(name, justify="right" if name == "measured" else "left")
    for bar in result["bars"]:
        table.add_row(
            bar["what"],
            "" if bar["value"] is None else _beside(bar["value"], bar["bar"]),
            f"{bar['wanted']} {bar['bar']:g}",
            {True: "yes", False: "NO", None: "not measured"}[bar["holds"]],
        )
    return table


def _beside(value: float, bar: float) -> str:
    """Two digits after the point; three where two would look like the bar itself."""
    return f"{value:,.3f}" if round(value, 2) == bar else f"{value:,.2f}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def show(
    result: Result,
    *,
    as_json: bool,
    plot: Path | None,
    tables: Callable[[Result], Iterable[Table]],
    figure: "Callable[[Result], Figure]",
) -> None:
    """Print `result` as tables, or as JSON; then draw it into `plot`. In this order: a picture
    that fails must not throw away what was measured."""
    if as_json:
        typer.echo(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
    else:
        console = Console()
        for table in tables(result):
            console.print(table)
    if plot is None:
        return
    try:
        figure(result).savefig(plot, bbox_inches="tight")
    except Exception as error:  # whatever matplotlib stumbles over; the numbers are printed
        _fail(f"--plot {plot}: could not be drawn: {error}")
    typer.echo(f"picture: {plot}", err=True)
