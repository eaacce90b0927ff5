"""The command `forebay route`: reads a request and a config, shows what would be decided."""

from pathlib import Path
from typing import Annotated, NoReturn

import orjson
import typer

from extproc.config import ConfigError, load
from extproc.openai import CHAT


def _fail(error: object) -> NoReturn:
    typer.echo(f"forebay: {error}", err=True)
    raise typer.Exit(2)


def command(
    request: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="REQUEST.json", help="The request's body; - reads standard input."),
    ],
    config_file: Annotated[
        Path,
        typer.Option("--config", help="An Envoy bootstrap, or a file with `forebay` alone."),
    ],
    tenant: Annotated[str | None, typer.Option(help="Who sends it. Left out: nobody.")] = None,
    request_class: Annotated[
        str | None, typer.Option("--class", help="Its x-request-class header: batch.")
    ] = None,
    latency_budget_ms: Annotated[
        int | None, typer.Option(min=0, help="Its x-latency-budget-ms header.")
    ] = None,
    path: Annotated[str, typer.Option(help="Where to.")] = CHAT,
    down: Annotated[
        list[str] | None, typer.Option(metavar="POOL", help="As if this pool were down; again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Explain where a request would go, and why: without a gateway, and without sending anything.

    What a cache or a queue does with it depends on a running gateway (`forebay cache why` asks
    one), and so does which share of the traffic is the hardest. The prompt is never shown.
    Exit status 0: it goes, or may go, somewhere; 1: it is refused; 2: the config or the question is
    wrong.

    Example: forebay route request.json --config envoy/envoy.yaml --tenant acme --down small
    """
    from rich.console import Console  # here: `forebay --help` needs none

    from extproc.decision import views
    from extproc.decision.facts import Refused
    from extproc.decision.report import Asked, Undecided, decide

    asked = Asked(
        body=request.read(),
        path=path.partition("?")[0],
        tenant=tenant,
        request_class=request_class,
        latency_budget_ms=latency_budget_ms,
        down=frozenset(down or ()),
    )
    try:
        decision = decide(load(config_file).config, asked)
    except (ConfigError, Undecided) as error:
        _fail(error)
    if as_json:
        typer.echo(orjson.dumps(decision, option=orjson.OPT_INDENT_2).decode())
    else:
        console = Console()
        for one in views.shown(decision):
            console.print(one)
    raise typer.Exit(1 if isinstance(decision, Refused) else 0)
