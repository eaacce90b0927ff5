"""The options of all benchmarks of `forebay bench` but batching. Measures nothing itself."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

import typer

from extproc.bench import views
from extproc.bench.contenders import CONTENDERS
from extproc.bench.lab import BenchError, Lab, lab
from extproc.bench.overload.contenders import CONTENDERS as PROTECTIONS
from extproc.bench.report import Json, Plot, Result, show
from extproc.up import Interrupted, UpError

_DATA = Path("../shared/data")
_LOADS = (0.5, 1.0, 1.5, 2.0, 5.0)


def _measured(run: Callable[[], Result]) -> Result:
    """What it measures; where it cannot or is stopped, one line and an exit status."""
    try:
        return run()
    except BenchError as error:
        typer.echo(f"forebay: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo("forebay: stopped", err=True)
        raise typer.Exit(130) from None


def overhead(
    requests: Annotated[
        int, typer.Option(min=20, help="At saturation, for each contender and round.")
    ] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 5,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="This contender; may be repeated. A ratio needs both of its sides. There are: "
            + "; ".join(f"{name} ({one.what})" for name, one in CONTENDERS.items())
            + ".",
        ),
    ] = None,
    foreign: Annotated[
        bool,
        typer.Option(
            "--foreign",
            help="Also litellm and vllm-router. As where --only names them, pip first installs "
            "them (minutes, once) into environments under FOREBAY_BENCH_CACHE, default "
            "~/.cache/forebay/bench. One that cannot be installed or started is left out, and the "
            "result says why. Has no effect beside --only.",
        ),
    ] = False,
    soak: Annotated[
        int, typer.Option(min=0, help="So many exchanges more, for the memory in the long run.")
    ] = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """What the gateway costs per request: CPU, latency and throughput beside plain Envoy, the least
    possible processor and others, with the same upstream, in one run.

    Example: forebay bench overhead --only minimal --only forebay
    """
    from extproc.bench import overhead as bench

    _check_names(only, CONTENDERS)
    names = only or [name for name, one in CONTENDERS.items() if foreign or not one.foreign]
    result = _in_lab(
        lambda made: bench.run(made, names=names, requests=requests, rounds=rounds, soak=soak)
    )
    show(
        result,
        as_json=as_json,
        plot=plot,
        tables=views.overhead_tables,
        figure=views.overhead_figure,
    )


def tokens(
    chunks: Annotated[int, typer.Option(min=20, help="Chunks of each answer.")] = 500,
    streams: Annotated[int, typer.Option(min=1, max=32, help="Answers at the same time.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 5,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """What each chunk of a streamed answer costs, by process: counted by Envoy, or by way of a
    processor.

    Example: forebay bench tokens --rounds 3 --plot tokens.svg
    """
    from extproc.bench import tokens as bench

    result = _in_lab(lambda made: bench.run(made, chunks=chunks, streams=streams, rounds=rounds))
    show(result, as_json=as_json, plot=plot, tables=views.token_tables, figure=views.token_figure)


def overload(
    load: Annotated[
        list[float] | None,
        typer.Option(
            min=0.1,
            metavar="X",
            help="A load in multiples of capacity; may be repeated. Default: 0.5, 1, 1.5, 2, 5. "
            "The test at 3 is always made.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="This contender; may be repeated. There are: "
            + "; ".join(f"{name} ({one.what})" for name, one in PROTECTIONS.items())
            + ".",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Measured of each load; of each point of the sweep twice that.")
    ] = 10.0,
    test_seconds: Annotated[float, typer.Option(help="Measured of the test at 3.")] = 60.0,
    slots: Annotated[int, typer.Option(min=1, help="Answers at once in the server.")] = 16,
    decode_ms: Annotated[
        float | None, typer.Option(min=1, help="Milliseconds for a token. Default: 20.")
    ] = None,
    mean_tokens: Annotated[
        float, typer.Option(min=1, help="Mean length of an answer; lengths are geometric.")
    ] = 50.0,
    slo_ttft_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds to the first token that are good.")
    ] = 1.0,
    profile: Annotated[
        Path | None,
        typer.Option(help="Step times from `forebay sim calibrate`, instead of --decode-ms."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the arrivals and lengths.")] = 1,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """What protects a server under too much load: goodput, TTFT, what is refused and recovery, of
    Envoy, its own filters and Forebay, before one simulated server, in one run.

    Example: forebay bench overload --only envoy --only forebay --plot overload.svg
    """
    from extproc.bench.overload import flow, views
    from extproc.bench.overload.setup import Setup
    from serving.profile import ProfileFileError
    from serving.profile import load as load_profile

    _check_names(only, PROTECTIONS)
    if min(seconds, test_seconds) < 2 * slo_ttft_s:
        raise typer.BadParameter(
            f"measure for two SLOs at least, {2 * slo_ttft_s:g} s", param_hint="--seconds"
        )
    if profile and decode_ms is not None:
        raise typer.BadParameter("has all the times; leave out --decode-ms", param_hint="--profile")
    try:
        step_time = load_profile(profile) if profile else None
    except ProfileFileError as error:
        typer.echo(f"forebay: {error}", err=True)
        raise typer.Exit(1) from error
    setup = Setup(
        slots=slots,
        decode_ms=20.0 if decode_ms is None else decode_ms,
        mean_tokens=mean_tokens,
        slo_s=slo_ttft_s,
        seconds=seconds,
        test_seconds=test_seconds,
        seed=seed,
        profile=profile,
        step_time=step_time,
    )
    result = _in_lab(
        lambda made: flow.run(
            made, setup=setup, names=only or list(PROTECTIONS), loads=load or _LOADS
        )
    )
    show(result, as_json=as_json, plot=plot, tables=views.tables, figure=views.figure)


def cache(
    data: Annotated[
        Path | None,
        typer.Option(
            help=f"A folder with texts that people judged. Default: {_DATA}; a checkout's own in "
            "tests/unit/data are taken beside. A file that is not there is left out, and the "
            "result says so.",
            envvar="FOREBAY_DATA",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    lines: Annotated[
        int | None, typer.Option(min=1, help="Only so many lines of each file: a quick look.")
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """What the semantic cache decides on questions that ask the same or nearly so, beside a
    threshold; which texts it never shares; and what the caches cost a request.

    Example: forebay bench cache --data ../shared/data --plot cache.svg
    """
    import uvloop

    try:
        from extproc.bench.cache import flow, views
    except ModuleNotFoundError as error:
        typer.echo(f"forebay: {error.name} is missing: pip install 'forebay[semantic]'", err=True)
        raise typer.Exit(1) from error
    result = _measured(lambda: uvloop.run(flow.run(data or _DATA, lines)))
    show(result, as_json=as_json, plot=plot, tables=views.tables, figure=views.figure)


def routing(
    data: Annotated[
        Path | None,
        typer.Option(
            help=f"A folder with routing-dev.jsonl. Default: {_DATA}. Without the file no quality "
            "is measured, and the result says so.",
            envvar="FOREBAY_DATA",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """How well each way to judge difficulty finds what is worth the large model, on exam questions
    (APGR); whether a promised share is kept; and what a decision costs. Takes about a minute.

    Example: forebay bench routing --data ../shared/data --plot routing.svg
    """
    from extproc.bench.routing import flow, views

    result = _measured(lambda: flow.run(data or _DATA))
    show(result, as_json=as_json, plot=plot, tables=views.tables, figure=views.figure)


def limits(
    seconds: Annotated[float, typer.Option(min=3, help="Of each of the two turns.")] = 60.0,
    per_minute: Annotated[
        int, typer.Option(min=60, help="Requests that a tenant may send in a minute.")
    ] = 1800,
    offered: Annotated[
        float, typer.Option(min=1.5, help="What is offered, in multiples of that.")
    ] = 3.0,
    away: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds that Redis is away in the second turn. Default: a third of the turn.",
        ),
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Whether three gateways with one Redis grant a tenant what its limit allows, no more and no
    less; and the same with Redis killed in the middle.

    Example: forebay bench limits --seconds 60
    """
    from extproc.bench.limits import flow, views

    away_s = seconds / 3 if away is None else away
    if away_s > seconds - 2:
        raise typer.BadParameter("leave a second before and after", param_hint="--away")
    setup = flow.Setup(per_minute=per_minute, offered=offered, seconds=seconds, away_s=away_s)
    result = _in_lab(lambda made: flow.run(made, setup))
    show(result, as_json=as_json, plot=plot, tables=views.tables, figure=views.figure)


def _check_names(only: list[str] | None, there_are: Collection[str]) -> None:
    for name in only or ():
        if name not in there_are:
            raise typer.BadParameter(
                f"{name}: there are {', '.join(there_are)}", param_hint="--only"
            )


def _in_lab(bench: Callable[[Lab], Result]) -> Result:
    try:
        with lab() as made:
            return bench(made)
    except (BenchError, UpError) as error:
        typer.echo(f"forebay: {error}", err=True)
        raise typer.Exit(1) from error
    except Interrupted:
        typer.echo("forebay: stopped", err=True)
        raise typer.Exit(130) from None
