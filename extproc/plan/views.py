"""The advice for people: tables, with the reason for each recommendation, and a picture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from extproc.bench.report import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"recommended": "tab:green", "present": "tab:red"}


def tables(result: Result) -> Iterator[Table]:
    asked, free, knee = result["plan"], result["without_a_limit"], result["knee"]
    p = f"p{asked['percentile'] * 100:g}"
    pool = Table(
        title=f"{asked['slots']} slots of {_s(asked['service_mean_s'])} each "
        f"(scv {asked['service_scv']:g}), {asked['arrivals_per_s']:g} requests/s",
        show_header=False,
    )
    pool.add_row("load (1: all that the slots can carry)", f"{result['load']:.2f}")
    pool.add_row("may wait (TTFT less prefill)", _s(asked["wait_limit_s"]))
    pool.add_row("if all may wait: share that waits", f"{free['waiting_share']:.1%}")
    pool.add_row("if all may wait: mean wait", _s(free["wait_mean_s"]))
    pool.add_row(f"if all may wait: {p} of the wait", _s(free["wait_percentile_s"]))
    pool.add_row(
        f"knee: {p} of the wait reaches {_s(asked['wait_limit_s'])} at",
        f"{knee['arrivals_per_s']:.3g} requests/s, load {knee['load']:.2f}",
    )
    pool.add_row(
        "slots that hold it for all, nobody shed", f"{result['slots_needed']}", end_section=True
    )
    yield pool
    gates = Table(
        *("marks", "high_water", "low_water", "in time", "late", "shed", "busy"),
        title=f"What becomes of the requests at load {result['load']:.2f}",
        caption=_why(result, p),
        caption_justify="left",
    )
    for name, marks in result["marks"].items():
        shares = (f"{marks[key]:.1%}" for key in ("in_time", "late", "shed", "utilisation"))
        gates.add_row(name, str(marks["high_water"]), str(marks["low_water"]), *shares)
    yield gates


def _why(result: Result, p: str) -> str:
    exact = (
        ""
        if result["plan"]["service_scv"] == 1
        else ("\nThe shares are those of exponential service: for other scv an approximation.")
    )
    recommended, limit = result["marks"]["recommended"], _s(result["plan"]["wait_limit_s"])
    one_more = _s(result["one_more_waits_s"])
    if recommended["high_water"] == 0:
        return (
            f"Nobody may wait: even the first in the queue would wait {one_more} at {p}, more than "
            f"{limit}.{exact}"
        )
    return (
        f"The last of {recommended['high_water']} in the queue waits "
        f"{_s(recommended['last_in_queue_waits_s'])} at {p}, one more would wait {one_more}; "
        f"{limit} is allowed.{exact}"
    )


def _s(seconds: float | None) -> str:
    if seconds is None:
        return "without end"
    return f"{seconds * 1000:.0f} ms" if 0 < seconds < 0.9995 else f"{seconds:.3g} s"


def figure(result: Result) -> "Figure":
    """Wait against load, with the knee and the wait that each high mark allows; below it the share
    of requests in time with each pair of marks."""
    from matplotlib.figure import Figure  # here: no other command needs it

    asked, knee = result["plan"], result["knee"]
    limit_s, p = asked["wait_limit_s"], f"p{asked['percentile'] * 100:g}"
    drawn = Figure(figsize=(8, 8), layout="constrained")
    waits, goodput = drawn.subplots(2, 1)
    loads = [point["load"] for point in result["waits"]]
    waits.plot(
        loads, [point["percentile_s"] for point in result["waits"]], label=f"{p} of the wait"
    )
    waits.plot(loads, [point["mean_s"] for point in result["waits"]], "--", label="mean wait")
    waits.axhline(limit_s, color="black", label=f"limit, {_s(limit_s)}")
    waits.axvline(knee["load"], color="grey", linestyle=":", label=f"knee, {knee['load']:.2f}")
    top_s = 3 * limit_s
    for name, marks in result["marks"].items():
        last_s, high = marks["last_in_queue_waits_s"], marks["high_water"]
        what = f"the last waits {_s(last_s)} at {p}" if high else "nobody waits"
        waits.axhline(
            min(last_s, top_s),  # the label has the number of one that is far above
            color=_COLOURS[name],
            linestyle="-.",
            linewidth=2,
            label=f"{name} high_water {high}: {what}",
        )
    waits.set(
        title=f"{asked['slots']} slots of {_s(asked['service_mean_s'])}, "
        f"scv {asked['service_scv']:g}: if all may wait",
        xlabel="load",
        ylabel="wait, s",
        xlim=(0, 1),
        ylim=(0, top_s * 1.02),
    )
    for name, marks in result["marks"].items():
        goodput.plot(
            [point["load"] for point in result["goodput"]],
            [point[name] * point["load"] for point in result["goodput"]],
            color=_COLOURS[name],
            label=f"{name}: {marks['high_water']}/{marks['low_water']}",
        )
    goodput.axvline(result["load"], color="grey", label=f"asked, {result['load']:.2f}")
    goodput.set(
        title="Goodput with these marks (high_water/low_water)",
        xlabel="load",
        ylabel="in time, of what the slots can carry",
        ylim=(0, 1.05),
    )
    for axes in (waits, goodput):
        axes.grid(alpha=0.3)
        axes.legend(framealpha=1)
    return drawn
