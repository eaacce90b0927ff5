"""`forebay sim`: one simulated server; `forebay sim calibrate` fits its speed to a real one.

Reads options, calls one module, turns its errors into sentences. What serves is imported only when
it is used, so that `forebay --help` is quick.
"""

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


def _fail(message: object) -> NoReturn:
    typer.echo(f"forebay: {message}", err=True)
    raise typer.Exit(1)


@app.callback()
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
) -> None:
    """Run one simulated vLLM server. API, scheduling and metrics are vLLM's; no model answers.

    Faults: POST /sim/faults with {"status": 503}, {"reset_after": 3}, {"stall_after": 3}, or {}.

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
            step_time=load(profile) if profile else None,
            **given,
        )
    except (ProfileFileError, ValueError) as error:
        _fail(error)
    try:
        run(settings, ready=lambda: typer.echo(f"simulated vLLM at http://{host}:{port}"))
    except OSError as error:
        _fail(f"{host}:{port}: {error.strerror}")
