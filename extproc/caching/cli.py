"""The commands `forebay cache ...`: ask the gateway, show what it says."""

from collections.abc import Iterable
from typing import Annotated, NoReturn

import orjson
import typer
from pydantic import BaseModel, TypeAdapter
from rich.console import Console, RenderableType
from rich.markup import escape

from extproc.admin_port import GatewayError, ask, tell
from extproc.caching import views
from extproc.caching.report import Done, Explanation, Purge, Report, Trust, Why

app = typer.Typer(help="The caches of a running gateway.", no_args_is_help=True)

_From = Annotated[
    str, typer.Option("--from", metavar="URL", help="The running gateway's admin port.")
]
_Json = Annotated[bool, typer.Option("--json", help="For machines.")]
_HERE = "http://127.0.0.1:9902"

_REPORT, _DONE, _WHY = TypeAdapter(Report), TypeAdapter(Done), TypeAdapter(Explanation)


def _fail(error: object) -> NoReturn:
    typer.echo(f"forebay: {error}", err=True)
    raise typer.Exit(1)


def _show(value: object, shown: Iterable[RenderableType], as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console()
    for one in shown:
        console.print(one)


@app.command()
def stats(source: _From = _HERE, as_json: _Json = False) -> None:
    """What the caches hold, how often they helped, and what does not work just now.

    Example: forebay cache stats --from http://127.0.0.1:9902
    """
    try:
        report = ask(source, "/cache", "a report of caches", _REPORT)
    except GatewayError as error:
        _fail(error)
    _show(report, views.tables(report), as_json)


@app.command()
def purge(
    tenant: Annotated[str, typer.Option(help="Whose answers, its users' included.")],
    user: Annotated[str | None, typer.Option(help="Of this user of the tenant alone.")] = None,
    source: _From = _HERE,
    as_json: _Json = False,
) -> None:
    """Forget what was stored for a tenant, or for one of its users; public scope stays.

    Exit status 1 if it may not have been done.
    Example: forebay cache purge --tenant acme --user alice
    """
    _order(source, "/cache/purge", Purge.model_construct(tenant=tenant, user=user), as_json)


@app.command()
def trust(
    tenant: Annotated[str, typer.Option(help="Whose questions are to be compared again.")],
    source: _From = _HERE,
    as_json: _Json = False,
) -> None:
    """Switch a tenant's semantic cache on again, after too many of its hits were false.

    Example: forebay cache trust --tenant acme
    """
    _order(source, "/cache/trust", Trust.model_construct(tenant=tenant), as_json)


def _order(source: str, path: str, order: BaseModel, as_json: bool) -> None:
    try:
        done = tell(
            source, path, order.model_dump_json().encode(), "a report of what was done", _DONE
        )
    except GatewayError as error:
        _fail(error)
    _show(done, map(escape, done.says), as_json)


@app.command()
def why(
    request: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="REQUEST.json", help="The request's body; - reads standard input."),
    ],
    tenant: Annotated[str | None, typer.Option(help="Who sends it. Left out: nobody.")] = None,
    user: Annotated[str | None, typer.Option(help="The user id that comes with it.")] = None,
    path: Annotated[str, typer.Option(help="Where to.")] = "/v1/chat/completions",
    cache_control: Annotated[str, typer.Option(help="Its Cache-Control header.")] = "",
    latency_budget_ms: Annotated[
        int | None, typer.Option(min=0, help="Its x-latency-budget-ms header.")
    ] = None,
    source: _From = _HERE,
    as_json: _Json = False,
) -> None:
    """Why a request would hit or miss, step by step. Nothing is stored, counted or sent to a model.

    Of stored questions only the words are shown in which they differ from this one.
    Example: forebay cache why request.json --tenant acme --user alice
    """
    try:
        body = request.read().decode("utf-8")
    except UnicodeDecodeError:
        _fail(f"{request.name}: it is not UTF-8, as JSON has to be")
    asked = Why.model_construct(
        tenant=tenant,
        user=user,
        path=path,
        cache_control=cache_control,
        latency_budget_ms=latency_budget_ms,
        request=body,
    )
    try:
        sent = asked.model_dump_json().encode()
        told = tell(source, "/cache/why", sent, "an explanation", _WHY)
    except GatewayError as error:
        _fail(error)
    _show(told, views.explained(told), as_json)
