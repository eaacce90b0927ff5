"""The command `forebay plan`: reads options, asks the gateway where told, shows the advice."""

from typing import Annotated, NoReturn

import typer

from extproc.bench.report import Json, Plot, show
from extproc.options import duration_s
from extproc.plan import Asked, GatewayError, plan, read_pool, views


def _fail(error: object) -> NoReturn:
    typer.echo(f"forebay: {error}", err=True)
    raise typer.Exit(1)


def command(
    arrivals: Annotated[float, typer.Option(help="Requests per second to plan for.")],
    ttft: Annotated[
        float,
        typer.Option(parser=duration_s, metavar="DURATION", help="The SLO: time to first token."),
    ],
    prefill: Annotated[
        float | None,
        typer.Option(
            parser=duration_s,
            metavar="DURATION",
            help="What of it the server needs once a slot is free. The rest may be waited. "
            "Default: as measured with --from, else nothing.",
        ),
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Sequences in the servers at once.")] = None,
    service_mean: Annotated[
        float | None,
        typer.Option(
            parser=duration_s, metavar="DURATION", help="Mean time that a request holds its slot."
        ),
    ] = None,
    service_scv: Annotated[
        float | None,
        typer.Option(
            help="Its variance over mean squared: 0 all alike, 1 exponential, 4 a few very long. "
            "Default: as measured with --from, else 1.",
        ),
    ] = None,
    percentile: Annotated[
        float, typer.Option(help="Share of the requests that must hold it: from 0.5 to below 1.")
    ] = 0.99,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="A running gateway's admin port: slots, mean service time and present marks "
            "come from there where you do not give them.",
        ),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="With --from: which pool.")] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """How many slots, and which marks: what queueing theory advises for one pool.

    Examples:

    forebay plan --slots 16 --service-mean 6.3s --arrivals 2.5 --ttft 1s --prefill 200ms

    forebay plan --from http://127.0.0.1:9902 --pool small --arrivals 2.5 --ttft 1s --plot plan.svg
    """
    if pool is not None and source is None:
        _fail("--pool names a pool of a running gateway: say which with --from URL")
    marks = None
    if source is not None:
        try:
            told = read_pool(source, pool)
        except GatewayError as error:
            _fail(error)
        marks = (told.high_water, told.low_water)
        slots = told.slots if slots is None else slots
        if service_mean is None and told.mean_service_s is None:
            _fail(f"{source}: no request of this pool has ended yet; give --service-mean")
        if service_mean is None:
            service_mean = told.mean_service_s
            service_scv = told.service_scv if service_scv is None else service_scv
        prefill = told.server_ttft_s if prefill is None else prefill
    if slots is None or service_mean is None:
        _fail("give --slots and --service-mean, or --from URL to read them from a running gateway")
    try:
        result = plan(
            Asked(
                slots=slots,
                service_mean_s=service_mean,
                service_scv=1.0 if service_scv is None else service_scv,
                arrivals_per_s=arrivals,
                ttft_s=ttft,
                prefill_s=prefill or 0.0,
                percentile=percentile,
                marks=marks,
            )
        )
        show(result, as_json=as_json, plot=plot, tables=views.tables, figure=views.figure)
    except (ValueError, OSError) as error:
        _fail(error)
