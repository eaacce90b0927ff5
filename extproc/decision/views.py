"""A decision, for people."""

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from extproc.decision.facts import Decision, Refused, Score

_MOST_PARTS = 6


def shown(decision: Decision | Refused) -> Iterator[RenderableType]:
    if isinstance(decision, Refused):
        yield escape(f"refused: {decision.status} {decision.code}: {decision.message}")
        return
    yield _facts(decision)
    yield _ways(decision)
    yield _pools(decision)


def _table(title: str, *, show_header: bool = True) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, show_header=show_header)
    table.title_justify = table.caption_justify = "left"
    return table


def _facts(decision: Decision) -> Table:
    table = _table("The request", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    pinned = f", pinned to {decision.pin}" if decision.pin else ""
    table.add_row("tenant", escape(f"{decision.tenant}{pinned}, class {decision.request_class}"))
    asks = f"{decision.model}, {'streamed' if decision.streamed else 'JSON'}, {decision.path}"
    table.add_row("asks for", escape(asks))
    about = f"about {decision.prompt_tokens:,} of prompt"
    answer = f"{decision.completion_tokens:,} of answer"
    answer = f"assumed {answer}" if decision.completion_assumed else f"at most {answer}"
    table.add_row("tokens", f"{about}, {answer}")
    for cap in decision.caps:
        table.add_row("limit", escape(cap))
    if decision.score is not None:
        for name, says in _judged(decision.score):
            table.add_row(name, says)
    return table


def _judged(score: Score) -> Iterator[tuple[str, str]]:
    yield "judged by", f"{score.policy}: score {score.score:.3f} (higher is harder)"
    parts = [f"{name} {by:+.2f}" for name, by in score.parts.items()]
    more = f" and {len(parts) - _MOST_PARTS} more" if len(parts) > _MOST_PARTS else ""
    yield "because of", (", ".join(parts[:_MOST_PARTS]) or "nothing that counts") + more
    if score.usual_rank is None:
        rank = "whether that is among the hardest depends on the traffic before"
    else:
        low, high = score.usual_rank
        rank = f"above {low:.0%} to {high:.0%} of the requests that the model was compared on"
    yield "rank", f"{rank}; the hardest {score.share:.0%} go large"


def _ways(decision: Decision) -> Table:
    table = _table("Where it goes")
    if len(decision.ways) > 1:
        table.add_column("when", overflow="fold")
    table.add_column("attempts", overflow="fold")
    table.add_column("reason", overflow="fold")
    table.add_column("if the first one sheds", overflow="fold")
    for way in decision.ways:
        row = [", ".join(way.tiers), way.reason, "; ".join(way.if_shed)]
        table.add_row(*map(escape, [way.when, *row] if len(decision.ways) > 1 else row))
    return table


def _pools(decision: Decision) -> Table:
    table = _table("Pools")
    for name in ("pool", "model"):
        table.add_column(name, overflow="fold")
    for name in ("allowed", "up", "context", "fits", "USD"):
        table.add_column(name, justify="right", no_wrap=True)
    for pool in decision.pools:
        table.add_row(
            pool.pool,
            pool.model,
            _yes(pool.allowed),
            _yes(not pool.down),
            "unknown" if pool.context is None else f"{pool.context:,}",
            _yes(pool.fits),
            "no price" if pool.usd is None else f"{pool.usd:.6f}",
        )
    table.caption = "USD: of this request there, nothing cached; an estimate, as its tokens are"
    return table


def _yes(it: bool) -> str:
    return "yes" if it else "no"
