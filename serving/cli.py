"""`forebay sim`: one simulated server; `forebay sim calibrate` fits its speed to a real one.

Reads options, calls one module, turns its errors into sentences. What serves is imported only when
it is used, so that `forebay --help` is quick.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from serving.faults import KINDS

if TYPE_CHECKING:
    from serving.calibrate import Fit

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Click prints a paragraph that begins with \b line by line.
_FAULTS = "\n\n".join(
    (
        "Faults: POST /sim/faults with an object of these switches on exactly them, {} none. GET "
        "/sim/faults shows what is on.",
        "\n".join(("\b", *(f"  {kind:18} {does}" for kind, does in KINDS.items()))),
        'Instead of a value: {"value": VALUE, "probability": 0 to 1, "count": N}, for some of the '
        "requests or for the next N; with status also "
        '"retry_after": SECONDS, for the header.',
        "\b\nExample: curl http://127.0.0.1:8101/sim/faults -d '{\"stall_after\": 3}'",
    )
)
# Where a flag is not called as the setting that it makes.
_FLAGS = {
    "models": "--model",
    "default_max_tokens": "--max-tokens",
    "keep_alive_interval_s": "--sse-keep-alive-interval",
    "decode_ms_per_token": "--decode-ms",
    "decode_ms": "--decode-ms",
    "prefill_ms_per_1k_tokens": "--prefill-ms",
}


def _fail(message: object) -> NoReturn:
    typer.echo(f"forebay: {message}", err=True)
    raise typer.Exit(1)


def _by_flags(message: str, settings: Iterable[str]) -> str:
    """The message with each name of a setting as the flag that was typed."""
    flags = {name: f"--{name.replace('_', '-')}" for name in settings} | _FLAGS
    return re.sub(r"[a-z0-9_]+", lambda word: flags.get(word[0], word[0]), message)


@app.callback(epilog=_FAULTS)
def sim(
    context: typer.Context,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Where it listens. Needed.")
    ] = None,
    host: Annotated[str, typer.Option(help="On which address.")] = "127.0.0.1",
    model: Annotated[
        list[str] | None, typer.Option(help="A served model name; may be repeated.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 16,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="Tokens computed per step; longer prompts take several steps.")
    ] = 2048,
    max_model_len: Annotated[int, typer.Option(help="Most tokens of prompt plus answer.")] = 8192,
    block_size: Annotated[int, typer.Option(help="Tokens per KV block.")] = 16,
    num_kv_blocks: Annotated[
        int | None,
        typer.Option(help="KV blocks; too few preempt. Default: for all places at full length."),
    ] = None,
    decode_ms: Annotated[
        float | None,
        typer.Option(help="Milliseconds of a step with one answer in it. Default: 20."),
    ] = None,
    decode_ms_per_seq: Annotated[
        float | None, typer.Option(help="Of that, what each answer adds. Default: 0.")
    ] = None,
    prefill_ms: Annotated[
        float | None,
        typer.Option(help="Milliseconds that 1,000 prompt tokens add to steps. Default: 100."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="Times as measured by `forebay sim calibrate`, instead of these three."),
    ] = None,
    static_batching: Annotated[
        bool,
        typer.Option(
            "--static-batching", help="Form a batch when nothing runs; it ends as a whole."
        ),
    ] = False,
    max_tokens: Annotated[
        int, typer.Option(help="Length of an answer that names no max_tokens.")
    ] = 64,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="FOREBAY_SIM_API_KEY", help="Ask for this key, as vLLM does."),
    ] = None,
    sse_keep_alive_interval: Annotated[
        float | None,
        typer.Option(help="Seconds between comments in a stream before its first token."),
    ] = None,
) -> None:
    """Run one simulated vLLM server. API, scheduling and metrics are vLLM's; no model answers.

    Example: forebay sim --port 8101 --model small-7b --decode-ms 10
    """
    if context.invoked_subcommand:
        return
    if port is None:
        _fail("--port: say where the simulated server is to listen, such as --port 8101")
    from serving.profile import ProfileFileError, load
    from serving.settings import SimSettings
    from serving.sim import run

    knobs = {
        "decode_ms_per_token": decode_ms,
        "decode_ms_per_seq": decode_ms_per_seq,
        "prefill_ms_per_1k_tokens": prefill_ms,
    }
    given: dict[str, Any] = {name: value for name, value in knobs.items() if value is not None}
    if profile and given:
        _fail("--profile: has all the times; leave out --decode-ms*, --prefill-ms")
    try:
        settings = SimSettings(
            port=port,
            host=host,
            models=model or ["simulated"],
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            static_batching=static_batching,
            default_max_tokens=max_tokens,
            api_key=api_key,
            keep_alive_interval_s=sse_keep_alive_interval,
            step_time=load(profile) if profile else None,
            **given,
        )
    except ProfileFileError as error:
        _fail(error)
    except ValueError as error:
        _fail(_by_flags(str(error), (one.name for one in fields(SimSettings))))
    try:
        run(settings, ready=lambda: typer.echo(f"simulated vLLM at http://{host}:{port}"))
    except OSError as error:
        _fail(f"{host}:{port}: {error.strerror}")


@app.command()
def calibrate(
    url: Annotated[str, typer.Argument(help="Base URL of the server, or of a gateway to it.")],
    model: Annotated[
        str | None, typer.Option(help="Which model. Default: the first that it names.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the profile here, for `forebay sim --profile`.",
            dir_okay=False,
            writable=True,
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="FOREBAY_API_KEY", help="Sent as a Bearer token.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=8, help="Length of each answer; more is slower and steadier.")
    ] = 48,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="For machines. What it prints can be given to --profile too, in a file."
        ),
    ] = False,
) -> None:
    """Measure a server and fit the simulator's speed to it.

    It gets short answers at 1, 2, 4 and 8 streams and prompts of 64 to 1,024 words, five of each;
    nobody else should use it meanwhile. At 20 ms per token that takes some 20 seconds.

    Each prompt must fit in one step: --max-num-batched-tokens of the server has to be above the
    longest one's tokens, which the table shows (1,024 words and the chat template; a word is one
    token, seldom two). A server that splits them is fitted as slower at prompts than it is.

    The time that a request takes before and after its steps (HTTP, parsing) is fitted apart and
    shown. It is not in the profile: the simulated server has its own.

    Example: forebay sim calibrate http://127.0.0.1:8000 --out profile.json
    """
    from serving.calibrate import CalibrationError
    from serving.profile import save

    if out and not out.parent.is_dir():
        _fail(f"--out {out}: there is no folder {out.parent}; make it first")
    if out and not os.access(out.parent, os.W_OK):
        _fail(f"--out {out}: the folder {out.parent} may not be written to")

    def say(line: str) -> None:
        typer.echo(f"  {line}", err=True)

    typer.echo(f"forebay: measuring {url}", err=True)
    try:
        name, fitted = asyncio.run(_calibrate(url, model, api_key, tokens, say))
    except CalibrationError as error:
        _fail(error)
    result = _as_result(name, fitted)
    _show(fitted, result, as_json)
    if out:
        try:
            save(out, fitted.step_time, {"at": f"{datetime.now(UTC):%Y-%m-%d}", **result})
        except OSError as error:
            _fail(f"--out {out}: cannot be written: {error.strerror}")
        typer.echo(f"written; use it with: forebay sim --port 8101 --profile {out}", err=True)


async def _calibrate(
    url: str, model: str | None, api_key: str | None, tokens: int, say: Callable[[str], None]
) -> tuple[str | None, "Fit"]:
    from serving import calibrate as room

    async with room.Server(url, model=model, api_key=api_key) as server:
        return server.model, await room.calibrate(server, tokens=tokens, say=say)


def _as_result(model: str | None, fitted: "Fit") -> dict[str, Any]:
    points = [
        {
            "decoding": point.decoding,
            "prefill_tokens": point.prefill_tokens,
            "measured_ms": round(point.measured_s * 1e3, 3),
            "fitted_ms": round(fitted.fitted_s(point) * 1e3, 3),
            "error_percent": round(fitted.error(point) * 100, 1),
        }
        for point in fitted.points
    ]
    return {"model": model, "request_ms": round(fitted.request_s * 1e3, 3), "points": points}


def _show(fitted: "Fit", result: dict[str, Any], as_json: bool) -> None:
    from dataclasses import asdict

    import orjson
    from rich.console import Console
    from rich.table import Table

    if as_json:
        shown = {"step_time": asdict(fitted.step_time), **result}
        typer.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
        return
    table = Table("step or first token", "measured ms", "fitted ms", "error", title="The fit")
    for point, row in zip(fitted.points, result["points"], strict=True):
        numbers = (f"{row[name]:.2f}" for name in ("measured_ms", "fitted_ms"))
        table.add_row(point.name, *numbers, f"{row['error_percent']:+.1f} %")
    Console().print(table)
    model = fitted.step_time
    typer.echo(
        f"a step takes {model.base_s * 1e3:.3f} ms + {model.per_decode_seq_s * 1e3:.3f} ms per "
        f"decoding sequence + {model.per_prefill_token_s * 1e3:.4f} ms per prompt token\n"
        f"a request takes {fitted.request_s * 1e3:.3f} ms besides, once, which is not in a profile"
    )
