"""The command `forebay costs`: asks the gateway, shows what it says."""

from typing import Annotated, NoReturn

import orjson
import typer
from pydantic import TypeAdapter
from rich.console import Console

from extproc.admin_port import GatewayError, ask
from extproc.costs.report import Report, of_tenant
from extproc.costs.views import tables

_REPORT = TypeAdapter(Report)


def _fail(error: object) -> NoReturn:
    typer.echo(f"forebay: {error}", err=True)
    raise typer.Exit(1)


def command(
    source: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="The running gateway's admin port."),
    ] = "http://127.0.0.1:9902",
    tenant: Annotated[
        str | None,
        typer.Option(help="Of this tenant alone, as the policy names it; `default`: all others."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """What a running gateway's answers cost, and what each lever saved, the largest first.

    Example: forebay costs --from http://127.0.0.1:9902 --tenant acme
    """
    try:
        report = ask(source, "/costs", "a report of costs", _REPORT)
    except GatewayError as error:
        _fail(error)
    if tenant is not None:
        if tenant not in report.tenants:
            told = ", ".join(report.tenants) or "nobody yet"
            _fail(f"{source}: nothing was counted for a tenant {tenant}; only for {told}")
        report = of_tenant(report, tenant)
    if as_json:
        typer.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console()
    for table in tables(report):
        console.print(table)
