"""The command `forebay doctor`: reads options, has the gateway read, shows what was found."""

import asyncio
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from extproc.bench.report import Json
from extproc.options import duration_s

_WATCH_S = 5.0


def _fail(error: object) -> NoReturn:
    typer.echo(f"forebay: {error}", err=True)
    raise typer.Exit(2)


def command(
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="The gateway's admin port.")
    ] = "http://127.0.0.1:9902",
    watch: Annotated[
        float | None,
        typer.Option(
            parser=duration_s,
            metavar="DURATION",
            help="Time between the two readings; answers that end in it are judged. Default: 5s.",
        ),
    ] = None,
    since_start: Annotated[
        bool,
        typer.Option(
            "--since-start", help="Read once; judge all answers since the processes' start."
        ),
    ] = False,
    pool: Annotated[str | None, typer.Option(help="Only this pool. Default: all.")] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POOL=URL",
            help="A pool's vLLM server, where its address in the policy does not lead there from "
            "here; again for each replica. Default: as the gateway's /status says.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """What is wrong, which of TTFT and TPOT is out of its SLO (admission.slo), and what mends it.

    Reads the metrics of a running gateway and of its vLLM servers twice, and judges by what came
    between. First come servers that are down or refuse what the gateway sends, pools that shed, a
    config file that was refused. Exit status 0: there is none, and all is well or there are too few
    answers to judge; 1: one of these, or something is out of its SLO; 2: the gateway cannot be
    read.

    Examples:

    forebay doctor

    forebay doctor --from http://127.0.0.1:9902 --watch 30s --pool small --json

    forebay doctor --since-start --server small=http://127.0.0.1:8101
    """
    from extproc.admin_port import GatewayError
    from extproc.doctor import views  # here: `forebay --help` needs no HTTP client
    from extproc.doctor.run import examine

    if since_start and watch is not None:
        _fail("give --watch or --since-start, not both")
    watch_s = None if since_start else watch or _WATCH_S
    servers = _by_pool(server or [])
    what = f"reading {source}" + ("" if watch_s is None else f" twice, {watch_s:g} s apart")
    try:
        with Console(stderr=True).status(what):  # only on a terminal
            report = asyncio.run(examine(source, watch_s=watch_s, pool=pool, servers=servers))
    except GatewayError as error:
        _fail(error)
    if as_json:
        typer.echo(views.as_json(report))
    else:
        views.show(report, Console())
    raise typer.Exit(0 if report.well else 1)


def _by_pool(entries: list[str]) -> dict[str, tuple[str, ...]]:
    servers: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        pool, _, url = entry.partition("=")
        if not url.startswith(("http://", "https://")):
            _fail(f"--server {entry}: write it as POOL=http://host:port")
        servers[pool] = (*servers.get(pool, ()), url.rstrip("/"))
    return servers
