"""`forebay bench batching`: continuous against static batching, on the simulator's own engine.

The numbers come from `serving/replay.py`; this module only shows them. In virtual time: they say
what scheduling does, for a server of the given step times, and nothing about this machine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from extproc.bench.report import Json, Plot, Result, machine, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOADS = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0)
_TIMES = (("TTFT", "ttft_ms", ".2f"), ("TPOT", "tpot_ms", ".3f"), ("e2e", "e2e_ms", ".1f"))
_COLOURS = {"continuous": "tab:blue", "static": "tab:red"}


def batching(
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Step times from `forebay sim calibrate`. Default: 20 ms a step, 0.25 ms more per "
            "sequence, 100 ms per 1,000 prompt tokens."
        ),
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Continuous and static batching: one trace, six loads, in virtual time (some seconds).

    Example: forebay bench batching --plot batching.svg
    """
    from serving.engine import StepTime
    from serving.profile import ProfileFileError, load
    from serving.replay import Setup, Workload, compare

    try:
        step_time = (
            load(profile)
            if profile
            else StepTime.of_knobs(decode_ms=20, decode_ms_per_seq=0.25, prefill_ms_per_1k=100)
        )
    except ProfileFileError as error:
        typer.echo(f"forebay: {error}", err=True)
        raise typer.Exit(1) from error
    compared = compare(
        Setup(step_time=step_time), Workload(), _LOADS, lambda line: typer.echo(line, err=True)
    )
    result = {"bench": "batching", "machine": machine(), **compared}
    show(result, as_json=as_json, plot=plot, tables=tables, figure=figure)


def tables(result: Result) -> Iterator[Table]:
    """What was served, and how long it took; a line for each load and kind of batching."""
    setup, workload = result["setup"], result["workload"]
    served = Table(
        *("load", "batching", "tokens/s", "mean batch"),
        title=f"{workload['requests']} requests, up to {setup['max_num_seqs']} at once; "
        f"load 100% is {result['saturation_requests_per_s']:.2f} requests/s",
    )
    times = Table(
        *("load", "batching"),
        title="Times in seconds",
        caption="TPOT is from an answer's first token to its end, per further token. An answer of "
        "a static batch ends with the batch, so its TPOT has the wait for that in it.",
        caption_justify="left",
    )
    for heading, _, _ in _TIMES:
        times.add_column(f"{heading} p50", justify="right")
        times.add_column("p99", justify="right")
    for run in result["runs"]:
        name = f"{run['load']:.0%}", run["batching"]
        last = run["batching"] == "static"
        served.add_row(
            *(*name, f"{run['tokens_per_s']:,.0f}", f"{run['mean_batch']:.1f}"), end_section=last
        )
        seconds = (
            f"{run[key][percentile] / 1e3:{form}}"
            for _, key, form in _TIMES
            for percentile in ("p50", "p99")
        )
        times.add_row(*name, *seconds, end_section=last)
    yield served
    yield times


def figure(result: Result) -> "Figure":
    """Throughput and the three times over the load; lines are medians, dashes the 99th
    percentile."""
    from matplotlib.figure import Figure  # here: nothing else needs it

    drawn = Figure(figsize=(10, 7), layout="constrained")
    (throughput, ttft), (tpot, e2e) = drawn.subplots(2, 2)
    for kind, colour in _COLOURS.items():
        runs = [run for run in result["runs"] if run["batching"] == kind]
        loads = [run["requests_per_s"] for run in runs]
        throughput.plot(loads, [run["tokens_per_s"] for run in runs], color=colour, label=kind)
        for axes, name in ((ttft, "ttft_ms"), (tpot, "tpot_ms"), (e2e, "e2e_ms")):
            for percentile, style in (("p50", "-"), ("p99", "--")):
                values = [run[name][percentile] / 1e3 for run in runs]
                axes.plot(loads, values, style, color=colour, label=f"{kind}, {percentile}")
    throughput.set(title="Throughput", ylabel="generated tokens/s", ylim=(0, None))
    for axes, title in ((ttft, "Time to first token"), (tpot, "Time per token"), (e2e, "Answer")):
        axes.set(title=title, ylabel="s", yscale="log")
    for axes in (throughput, ttft, tpot, e2e):
        axes.set_xlabel("arriving requests/s")
        axes.grid(alpha=0.3)
    throughput.legend()
    ttft.legend()
    drawn.suptitle("The same trace through continuous and static batching")
    return drawn
