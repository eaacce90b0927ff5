"""How the result of `forebay bench cache` looks: tables and a picture."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.table import Table

from extproc.bench.report import Result, bars_table, left_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Told = dict[str, Any]


def tables(result: Result) -> Iterable[Table]:
    plain = f"≥ {result['settings']['plain_threshold']:.2f}"
    if result["pairs"]:
        yield _pairs(result, plain)
        yield from (_kinds(file, plain) for file in result["pairs"] if len(file["kinds"]) > 1)
    if result["stateful"]:
        yield _stateful(result)
    if result["statements"]:
        yield _statements(result["statements"])
    yield _times(result)
    yield bars_table("What is wanted", result)
    yield from left_out(result)


def _pairs(result: Result, plain: str) -> Table:
    table = Table(
        title=f"Pairs of questions: hits of the cache, and of a similarity {plain} alone",
        caption="other: pairs that ask something else, false: their hits; same and true: those "
        "that ask the same. QQP's duplicates are as others judged them, loosely.",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for title in ("other", "false", plain, "same", "true", plain):
        table.add_column(title, justify="right")
    for file in result["pairs"]:
        table.add_row(
            file["file"].removesuffix(".jsonl"),
            str(file["near_misses"]),
            str(file["false_hits"]),
            str(file["threshold_false_hits"]),
            str(file["paraphrases"]),
            _of(file["true_hits"], file["paraphrases"]),
            str(file["threshold_true_hits"]),
        )
    return table


def _kinds(file: Told, plain: str) -> Table:
    missed = ", ".join(f"{why} {n}" for why, n in file["paraphrases_missed_by"].items())
    table = Table(
        title=f"{file['file']}, by kind",
        caption=f"Paraphrases missed by: {missed or 'none'}.",
        caption_justify="left",
    )
    for title in ("kind", "pairs", "asks the same", "hits", plain):
        table.add_column(title, justify="right" if title in ("pairs", "hits", plain) else "left")
    for kind in file["kinds"]:
        wrong = not kind["same"] and kind["hits"]
        table.add_row(
            kind["kind"],
            str(kind["pairs"]),
            "yes" if kind["same"] else "no",
            str(kind["hits"]),
            str(kind["threshold_hits"]),
            style="bold red" if wrong else None,
        )
    return table


def _stateful(result: Result) -> Table:
    table = Table(title="Texts whose answer depends on more than the text")
    table.add_column("", no_wrap=True)
    for title in ("texts", "stateful", "precision", "recall", "trained on"):
        table.add_column(title, justify="right")
    for file in result["stateful"]:
        table.add_row(
            file["file"].removesuffix(".jsonl"),
            str(file["texts"]),
            str(file["stateful"]),
            _number(file["precision"]),
            _number(file["recall"]),
            "yes" if file["trained_on"] else "no",
        )
    return table


def _statements(told: Told) -> Table:
    missed = ", ".join(f"{why} {n}" for why, n in told["missed_by"].items())
    table = Table(
        title=f"gptcache-mock.json: {told['statements']} statements, each asked in other words",
        caption=f"{told['may_be_found']} may be found; the decision missed by: {missed or 'none'}.",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for title in ("right", "wrong", "missed", "wrong, of hits"):
        table.add_column(title, justify="right")
    for way, counts in told.items():
        if isinstance(counts, dict) and "right" in counts:
            share = counts["wrong_share"]
            table.add_row(
                way.replace("_", " "),
                *(str(counts[name]) for name in ("right", "wrong", "missed")),
                "no hit" if share is None else f"{share:.1%}",
            )
    return table


def _times(result: Result) -> Table:
    table = Table(title="Time, milliseconds")
    for title in ("", "p50", "p99", "max"):
        table.add_column(title, justify="right" if title else "left")

    def add(name: str, told: Told | None) -> None:
        if told is not None:
            us = (told[f"{which}_us"] for which in ("p50", "p99", "max"))
            table.add_row(name, *("" if each is None else f"{each / 1000:.3f}" for each in us))

    decision, embedding, exact = (result[name] for name in ("decision", "embedding", "exact"))
    if decision:
        stored = decision["questions_stored"]
        add(f"decision beyond the embedding, {stored} questions stored, CPU", decision)
        for name, told in decision["parts"].items():
            add(f"  of it {name}", told)
    table.add_row(
        "embedding, alone, wall", f"{embedding['p50_ms']:.3f}", f"{embedding['p99_ms']:.3f}"
    )
    table.add_row(
        "event-loop lag while embedding is busy",
        f"{embedding['loop_lag_p50_ms']:.3f}",
        f"{embedding['loop_lag_p99_ms']:.3f}",
    )
    for told in exact["memory"]:
        add(f"exact look-up, {told['prompt_characters']:,} characters, memory, CPU", told)
    if redis := exact["redis"]:
        add(f"the same in {redis['server']}, wall ({redis['misses']} not in time)", redis)
    return table


def figure(result: Result) -> "Figure":
    """For each file of pairs the hits of a threshold, true and false, over the threshold; the
    cache's are a line of their own."""
    from matplotlib.figure import Figure  # here: nothing else needs it

    files = [file for file in result["pairs"] if file["near_misses"] and file["paraphrases"]]
    drawn = Figure(figsize=(4.2 * max(1, len(files)), 4.2), layout="constrained")
    for axes, file in zip(drawn.subplots(1, len(files), squeeze=False)[0], files, strict=True):
        thresholds = [point["threshold"] for point in file["thresholds"]]
        for name, of, colour in (
            ("true", "paraphrases", "tab:blue"),
            ("false", "near_misses", "tab:red"),
        ):
            shares = [point[f"{name}_hits"] / file[of] for point in file["thresholds"]]
            axes.plot(thresholds, shares, color=colour, label=f"threshold, {name} hits")
            axes.axhline(
                file[f"{name}_hits"] / file[of],
                color=colour,
                linestyle="--",
                label=f"gate, {name} hits",
            )
        axes.set(title=file["file"].removesuffix(".jsonl"), xlabel="threshold", ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize="small")
    if not files:
        raise ValueError("no file has both near-misses and paraphrases")
    drawn.supylabel("share of paraphrases, or of near-misses, that hit")
    return drawn


def _of(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else str(part)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
