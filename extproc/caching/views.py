"""What the caches say, for people."""

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from extproc.caching.report import Explanation, Report, Semantic, Store


def tables(report: Report) -> Iterator[RenderableType]:
    if report.store is None:
        yield "The caches are off: see forebay.cache.exact."
    else:
        yield _facts("Store", _store(report.store, report.under_way))
    if report.tenants:
        yield _tenants(report)
    if report.semantic is not None:
        yield _of_semantic(report.semantic)
        if report.semantic.lookups:
            yield _lookups(report.semantic)
        else:
            yield (
                "No question was compared yet. With scope user, only those with a user id are; "
                "forebay cache why says it of one request."
            )
        for tenant, why in report.semantic.budget.off.items():
            yield (
                f"Off for tenant {escape(tenant)}: {escape(why)}. "
                f"forebay cache trust --tenant {escape(tenant)} switches it on again."
            )
    elif report.store is not None:
        yield "The semantic cache is off: see forebay.cache.semantic."


def _table(title: str, **more: Any) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, **more)


def _facts(title: str, facts: Iterator[tuple[str, str]]) -> Table:
    table = _table(title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, says in facts:
        table.add_row(name, escape(says))
    return table


def _store(store: Store, under_way: int) -> Iterator[tuple[str, str]]:
    yield "kind", store.kind
    yield "state", store.state
    if store.entries is not None and store.used_bytes is not None:
        yield "entries", f"{store.entries:,} in {_size(store.used_bytes)}"
    yield "stored", f"{store.stored:,} since it was opened"
    if store.kind == "memory":
        yield "evicted", f"{store.evicted:,} of them, to make room"
    failed = ", ".join(f"{count:,} {why}" for why, count in store.failed.items() if count)
    yield "failures", failed or "none"
    yield "in flight", f"{under_way:,} requests that the same may wait for"


def _tenants(report: Report) -> Table:
    table = _table("Requests since the start")
    table.add_column("tenant", overflow="fold")
    for name in ("hit", "semantic", "collapsed", "miss", "bypass", "answered"):
        table.add_column(name, justify="right", no_wrap=True)
    for tenant, of in report.tenants.items():
        answered = of.hit + of.semantic_hit + of.collapsed
        share = answered / max(answered + of.miss, 1)
        counts = (of.hit, of.semantic_hit, of.collapsed, of.miss, of.bypass)
        table.add_row(escape(tenant), *(f"{count:,}" for count in counts), f"{share:.1%}")
    table.caption = "answered: of those that may be stored, without a model of their own"
    table.caption_justify = "left"
    return table


def _semantic(semantic: Semantic) -> Iterator[tuple[str, str]]:
    embedder, budget = semantic.embedder, semantic.budget
    yield "embedder", f"{embedder.state}: {embedder.says}"
    yield "model", embedder.model or "not known yet"
    held = f"{semantic.questions:,} in {_size(semantic.used_bytes)}"
    yield "questions", f"{held}, {semantic.partitions:,} partitions"
    rate = "" if budget.rate is None else f" ({budget.rate:.2%})"
    yield "checked", f"{budget.checked:,} hits, {budget.false:,} false{rate}"
    yield "allowed", f"{budget.allowed:.2%} false"
    yield "unchecked", f"{budget.unchecked:,} hits that could not be"
    yield "off for", ", ".join(budget.off) or "nobody"


def _of_semantic(semantic: Semantic) -> Table:
    table = _facts("Semantic cache", _semantic(semantic))
    table.caption = (
        "checked: answered by the model, too, and compared: the first hits of each tenant\n"
        "(check_first) and then a share (check_share)"
    )
    table.caption_justify = "left"
    return table


def _lookups(semantic: Semantic) -> Table:
    table = _table("Semantic look-ups since the start")
    table.add_column("outcome", no_wrap=True)
    table.add_column("requests", justify="right", no_wrap=True)
    for outcome, count in sorted(semantic.lookups.items(), key=lambda pair: -pair[1]):
        table.add_row(outcome, f"{count:,}")
    return table


def _size(size_bytes: int) -> str:
    if size_bytes < 1024:
        return f"{size_bytes} B"
    if size_bytes < 1024**2:
        return f"{size_bytes / 1024:.1f} KiB"
    return f"{size_bytes / 1024**2:.1f} MiB"


def explained(told: Explanation) -> Iterator[RenderableType]:
    table = _facts("The way of the request", ((step.name, step.says) for step in told.steps))
    table.title_justify = "left"
    yield table
    if told.candidates:
        yield _candidates(told)
    yield escape(told.conclusion)


def _candidates(told: Explanation) -> Table:
    table = _table("Stored questions, the most similar first", title_justify="left")
    table.add_column("similarity", justify="right", no_wrap=True)
    table.add_column("asks the same", no_wrap=True)
    table.add_column("why", overflow="fold")
    for candidate in told.candidates:
        same = "no" if candidate.verdict == "other" else "yes"
        table.add_row(f"{candidate.similarity:.3f}", same, escape(candidate.why))
    return table
