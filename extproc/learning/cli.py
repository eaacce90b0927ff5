"""The command `forebay train-router`: reads outcomes, shows what was learned, writes the model."""

from pathlib import Path
from typing import Annotated, NoReturn

import orjson
import typer


def _fail(error: object) -> NoReturn:
    typer.echo(f"forebay: {error}", err=True)
    raise typer.Exit(1)


def command(
    file: Annotated[Path, typer.Argument(help="Outcomes, a JSON line each.")],
    write: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Where to write the model. Without it: only look."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Learn from sampled requests, which both models answered, what is worth the large one. The
    model is written only if it is surely better than prior and length on the later requests; else
    the exit status is 1.

    A line of FILE: {"time_s": 1790000000.0, "features": {"chars": 4.6, ...}, "small_right": false,
    "large_right": true}. It has the prompt's counted features, not the prompt.

    Example: forebay train-router outcomes.jsonl --write router.json
    """
    from rich.console import Console  # here, and numpy too: `forebay --help` needs neither

    from extproc.learning import views
    from extproc.learning.outcomes import OutcomesError, read
    from extproc.learning.train import train

    try:
        outcomes = read(file)
        typer.echo(f"learning from {len(outcomes):,} requests", err=True)
        model, refused, result = train(outcomes)
    except OutcomesError as error:
        _fail(error)
    if as_json:
        typer.echo(orjson.dumps(result | {"refused": refused}).decode())
    else:
        console = Console()
        for table in views.tables(result):
            console.print(table)
    if refused or model is None:
        _fail(refused)
    if write is None:
        typer.echo("the model may be used; --write MODEL writes it", err=True)
        return
    try:
        write.write_text(model.model_dump_json() + "\n", encoding="utf-8")
    except OSError as error:
        _fail(f"--write {write}: cannot be written: {error.strerror}")
    typer.echo(f"written: {write}", err=True)
