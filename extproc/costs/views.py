"""The report of costs for people: two tables."""

from collections.abc import Callable, Iterator

from rich import box
from rich.table import Table

from extproc.costs.report import Cost, Report


def tables(report: Report) -> Iterator[Table]:
    yield _costs(report)
    yield _savings(report)
    if report.budgets:
        yield _budgets(report)


def _budgets(report: Report) -> Table:
    table = Table(
        title="Budgets, of this UTC day or month",
        caption="Running requests count with what they are expected to cost.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in ("tenant", "per", "spent, USD", "of", "%"):
        table.add_column(name, justify="left" if name in ("tenant", "per") else "right")
    for one in report.budgets:
        usd = _dollars(one.usd)
        share = f"{one.spent_usd / one.usd:.0%}"
        table.add_row(one.tenant, one.per, usd(one.spent_usd), usd(one.usd), share)
    return table


def _costs(report: Report) -> Table:
    table = Table(
        title=f"Costs since {report.since}",
        caption=_notes(report.costs),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # all columns fit a terminal of 80
        pad_edge=False,
    )
    for name in ("tenant", "feature", "model", "pool"):
        table.add_column(name, overflow="fold")
    for name in ("requests", "input", "cached", "output", "USD"):
        table.add_column(name, justify="right", no_wrap=True)
    usd = _dollars(report.usd)
    for cost in report.costs:
        tokens = cost.tokens
        numbers = (cost.requests, tokens.input, tokens.cached_input, tokens.output)
        names = (cost.tenant, cost.feature, cost.model, cost.pool)
        shown = "no price" if cost.usd is None else usd(cost.usd)
        table.add_row(*names, *map(_short, numbers), shown)
    table.add_section()
    table.add_row("all", *[""] * 7, usd(report.usd))
    return table


def _notes(costs: list[Cost]) -> str:
    notes = ["Tokens: input that was not cached, cached input, output."]
    if uncounted := sum(cost.uncounted for cost in costs):
        notes.append(
            f"{uncounted:,} requests ended uncounted (the client left, or the answer was cut): "
            f"about {sum(cost.input_estimated for cost in costs):,} input and "
            f"{sum(cost.output_estimated for cost in costs):,} output tokens, estimated, which are "
            "not among these but in the cost."
        )
    if unpriced := sum(cost.unpriced for cost in costs):
        notes.append(
            f"{unpriced:,} requests went to pools without pools.NAME.price: no cost, no saving."
        )
    return "\n".join(notes)


def _savings(report: Report) -> Table:
    table = Table(
        title="Saved, by lever",
        caption="Each by this lever alone: what the same requests would have cost more with it off."
        + (" *: an estimate." if any(one.estimated for one in report.savings) else ""),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("lever", no_wrap=True)
    table.add_column("requests", justify="right", no_wrap=True)
    table.add_column("USD", justify="right", no_wrap=True)
    table.add_column("compared with")
    usd = _dollars(report.saved_usd)
    for one in report.savings:
        name = one.lever + ("*" if one.estimated else "")
        table.add_row(name, _short(one.requests), usd(one.usd), one.counterfactual)
    table.add_section()
    table.add_row("all", "", usd(report.saved_usd), "")
    return table


def _dollars(total: float) -> Callable[[float], str]:
    """Alike within a table, and as exact as its sum needs."""
    digits = 2 if total >= 100 else 4 if total >= 1 else 6
    return lambda usd: f"{usd:,.{digits}f}"


def _short(count: int) -> str:
    """At most six characters below 1,000 G."""
    if count < 10_000:
        return str(count)
    for unit, size in (("k", 1e3), ("M", 1e6)):
        if count / size < 999.95:
            return f"{count / size:.1f}{unit}"
    return f"{count / 1e9:.1f}G"
