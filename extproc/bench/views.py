"""How the results of `forebay bench overhead` and `tokens` look: tables and pictures."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.table import Table

from extproc.bench.report import Result, left_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def overhead_tables(result: Result) -> Iterable[Table]:
    contenders: dict[str, dict[str, Any]] = result["contenders"]
    cpu = Table(
        title="CPU per request at saturation, microseconds (medians over the rounds)",
        caption="answers: all that were checked. MiB: memory of the processor (or the foreign "
        "proxy) at the end; +MiB: what of that came after the warm-up.",
        caption_justify="left",
    )
    cpu.add_column("", no_wrap=True)
    for title in ("Envoy", "processor", "all", "req/s", "answers", "MiB", "+MiB"):
        cpu.add_column(title, justify="right", no_wrap=True)
    for name, told in contenders.items():
        start, end = told["memory_mib_at_start"], told["memory_mib_at_end"]
        cpu.add_row(
            name,
            _number(told.get("envoy_cpu_us")),
            _number(told.get("processor_cpu_us", told.get("proxy_cpu_us"))),
            _number(told["all_cpu_us"]),
            _number(told["requests_per_s"]),
            str(told["answers"]),
            _number(end),
            _number(None if end is None else end - start, 1),
        )
    yield cpu
    rates = result["settings"]["rates_per_s"]
    times = Table(title="Latency, ms; in brackets what it has more than plain Envoy")
    times.add_column("", no_wrap=True)
    for rate in rates:
        for p in (50, 99):
            times.add_column(f"p{p} {rate}/s", justify="right")
    times.add_column("p50 max", justify="right")
    for name, told in contenders.items():
        cells: list[str] = []
        for rate in rates:
            if told["requests_per_s"] < rate:  # a queue without end, whose length says nothing
                cells += ("too many",) * 2
                continue
            for p in (50, 99):
                more = told.get(f"added_p{p}_ms_at_{rate}")
                added = "" if more is None else f" ({more:+.1f})"
                cells.append(f"{told[f'p{p}_ms_at_{rate}']:.2f}{added}")
        times.add_row(name, *cells, f"{told['p50_ms_at_saturation']:.2f}")
    yield times
    yield _ratios(result)
    yield _more(result)
    yield from left_out(result)


def _more(result: Result) -> Table:
    table = Table(title="The processor alone", show_header=False)
    for name, cpu_ms in result["large_prompt_cpu_ms"].items():
        table.add_row(
            f"CPU of a prompt of 1 MB more than of a small one, {name}", f"{cpu_ms:.2f} ms"
        )
    if "processor_start_ms" in result:
        table.add_row("Forebay's start, exec to ready", f"{result['processor_start_ms']:.0f} ms")
    for step in result.get("soak", ()):
        table.add_row(
            f"memory after {step['exchanges']:,} exchanges", f"{step['memory_mib']:.1f} MiB"
        )
    return table


def _ratios(result: Result) -> Table:
    """The ratios that have a bar, each with its verdict."""
    table = Table(
        title="Ratios (median over the rounds; lowest and highest round)",
        caption=result["doubt"],
        caption_justify="left",
        caption_style="bold red",
    )
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


def token_tables(result: Result) -> Iterable[Table]:
    table = Table(
        title="CPU per chunk of a streamed answer, microseconds (medians)",
        caption="reads/chunk: how often the client read, for each chunk. Near 1, chunks were "
        "handled one by one, as is meant; joined ones are cheaper, so a run well below is refused.",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for title in ("Envoy", "processor", "all", "chunks", "reads/chunk"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, told in result["contenders"].items():
        table.add_row(
            name,
            _number(told["envoy_cpu_us"], 1),
            _number(told.get("processor_cpu_us"), 1),
            _number(told["all_cpu_us"], 1),
            f"{told['chunks']:,}",
            _number(told["reads_per_chunk"], 2),
        )
    yield table
    yield _ratios(result)


def overhead_figure(result: Result) -> "Figure":
    return _cpu_figure(result, "CPU per request at saturation, microseconds")


def token_figure(result: Result) -> "Figure":
    return _cpu_figure(result, "CPU per chunk of a streamed answer, microseconds")


def _cpu_figure(result: Result, what: str) -> "Figure":
    """Stacked bars, by process."""
    from matplotlib.figure import Figure  # here: nothing else needs it

    contenders: dict[str, dict[str, Any]] = result["contenders"]
    names = list(contenders)
    drawn = Figure(figsize=(8, 0.5 * len(names) + 1.5))
    axes = drawn.subplots()
    left = [0.0] * len(names)
    for part, colour in (("envoy", "#7f8c9b"), ("processor", "#2a6fb0"), ("proxy", "#b0562a")):
        widths = [contenders[name].get(f"{part}_cpu_us", 0.0) for name in names]
        if any(widths):
            axes.barh(names, widths, left=left, label=part, color=colour)
        left = [sum(both) for both in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, max(left) * 1.05)
    axes.set_xlabel(what)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return drawn


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
