"""The options of `forebay bench overhead` and `forebay bench tokens`. Measures nothing itself."""

from collections.abc import Callable
from typing import Annotated

import typer

from extproc.bench import views
from extproc.bench.contenders import CONTENDERS
from extproc.bench.lab import BenchError, Lab, lab
from extproc.bench.report import Json, Plot, Result, show
from extproc.up import Interrupted, UpError


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

    unknown = [name for name in only or () if name not in CONTENDERS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]}: there are {', '.join(CONTENDERS)}", param_hint="--only"
        )
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
