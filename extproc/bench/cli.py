"""`forebay bench`: one command per benchmark."""

import typer

from extproc.bench import commands
from extproc.bench.batching import batching

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def bench() -> None:
    """Measure, side by side and in one run. Ratios travel between machines; wall times do not."""


app.command()(batching)
app.command()(commands.overhead)
app.command()(commands.tokens)
app.command()(commands.overload)
app.command()(commands.cache)
app.command()(commands.routing)
app.command()(commands.limits)
