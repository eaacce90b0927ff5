"""What every benchmark ends with: a table for people, JSON for machines, a picture on request."""

import os
import platform
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]
"""Of JSON's types alone: {"bench": name, "machine": {...}, ...}; names carry units."""


def machine() -> Result:
    """What the numbers were taken on; belongs in every result."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "forebay": version("forebay"),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


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
    """Print `result` as tables, or as JSON; also draw it into `plot` (.svg, .png or .pdf)."""
    if plot is not None:
        _save(figure(result), plot)
    if as_json:
        typer.echo(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console()
    for table in tables(result):
        console.print(table)
    if plot is not None:
        console.print(f"picture: {plot}")


def _save(figure: "Figure", plot: Path) -> None:
    figure.savefig(plot, bbox_inches="tight")
