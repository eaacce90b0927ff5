"""The command line, `forebay`. Reads options, calls one room, turns its errors into sentences."""

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from extproc import config, logs
from extproc.bench import cli as bench
from extproc.caching import cli as caching
from extproc.costs import cli as costs
from extproc.decision import cli as decision
from extproc.doctor import cli as doctor
from extproc.learning import cli as learning
from extproc.plan import cli as plan
from extproc.up import Interrupted, Options, Stack, UpError, reference_config
from serving import cli as sim
from serving import vllm_profiles

app = typer.Typer(
    help="Admission, routing and honest endings for LLM endpoints behind Envoy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and end.")] = False,
) -> None:
    if show:
        from importlib.metadata import version  # here: it takes longer to load than to show

        typer.echo(version("forebay"))
        raise typer.Exit


def _fail(error: Exception) -> NoReturn:
    typer.echo(f"forebay: {error}", err=True)
    raise typer.Exit(1) from error


@app.command()
def up(
    config_file: Annotated[
        Path | None, typer.Option("--config", help="An Envoy bootstrap. Default: the reference.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POOL=URL",
            help="A real server: small=http://127.0.0.1:8101. Again for another replica or pool. "
            "Without any, all pools are simulated.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The gateway's port. Default: the config's, 10000. 0: free ports for everything.",
        ),
    ] = None,
    envoy_admin_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Envoy's admin port. Default: the config's, 9901."),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="The processor's admin port. Default: the config's, 9902."
        ),
    ] = None,
) -> None:
    """Run everything on this machine: Envoy, the processor and the pools. Ctrl-C stops it all.

    Example: forebay up --backend small=http://127.0.0.1:8101 --backend large=http://127.0.0.1:8102
    """
    backends: dict[str, tuple[str, ...]] = {}
    for entry in backend or ():
        pool, equals, url = entry.partition("=")
        if not equals:
            _fail(UpError(f"--backend {entry}: write it as POOL=URL"))
        backends[pool] = (*backends.get(pool, ()), url)
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, lambda *_: stop.set())
    stack: Stack | None = None
    try:
        stack = Stack(
            Options(
                config=config_file or reference_config(),
                port=port,
                envoy_admin_port=envoy_admin_port,
                admin_port=admin_port,
                backends=backends,
            ),
            say=lambda line: typer.echo(f"  {line}"),
            interrupted=stop.is_set,
        )
        typer.echo("forebay: starting")
        stack.start()
        typer.echo(_welcome(stack, simulated=not backends))
        stack.watch()
    except (UpError, config.ConfigError) as error:
        _fail(error)
    except Interrupted:
        typer.echo("\nforebay: stopping")
    finally:
        if stack:
            stack.stop()


def _welcome(stack: Stack, *, simulated: bool) -> str:
    policy = stack.config.document["node"]["metadata"]["forebay"]["pools"]
    pools = "".join(
        f"    {name:<10} {url}   model {policy[name]['model']}\n"
        for name, url in stack.config.backend_urls.items()
    )
    simulators = " (simulated: no model answers here)" if simulated else ""
    key = f" -H 'authorization: Bearer {stack.config.demo_key}'" if stack.config.demo_key else ""
    return (
        f"\nForebay runs. Ctrl-C stops it.\n\n"
        f"  gateway      {stack.config.url}\n"
        f"  metrics      {stack.config.admin_url}/metrics"
        "   (also /status, /costs, /cache, /readyz)\n"
        f"  diagnosis    forebay doctor --from {stack.config.admin_url}"
        "   (also costs, cache stats)\n"
        f"  Envoy admin  {stack.config.envoy_admin_url}\n"
        f"  logs         {stack.folder}\n"
        f"  pools{simulators}\n{pools}\n"
        "Try it:\n\n"
        f"  curl -i {stack.config.url}/v1/chat/completions"
        f" -H 'content-type: application/json'{key} "
        '-d \'{"model": "auto", "messages": [{"role": "user", "content": "Is the sky blue?"}]}\'\n'
    )


@app.command()
def serve(
    config_file: Annotated[
        Path,
        typer.Option(
            "--config", help="The Envoy bootstrap, or a file with the `forebay` block alone."
        ),
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            help="unix:/path or host:port. Default: where the bootstrap's Envoy expects it."
        ),
    ] = None,
) -> None:
    """Run the processor alone. SIGTERM drains it.

    Example: forebay serve --config envoy/envoy.yaml
    """
    # grpcio hands what it reads to threads of its own first; without them a request costs it 15%
    # less. Read when grpcio is loaded; a version that does not know it says so and goes on.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
    import uvloop  # here: `forebay --help` needs no server

    from extproc.admin import CannotListen
    from extproc.server import serve

    log_lines = logs.start()
    try:
        seen = config.stamp(config_file)
        loaded = config.load(config_file)
        address = listen or loaded.listen
        if address is None:
            raise config.ConfigError(
                f"{config_file} holds the policy alone: say with --listen where Envoy expects us"
            )
        uvloop.run(serve(loaded.config, address, config_file, seen))
    except (config.ConfigError, CannotListen) as error:
        _fail(error)
    finally:
        log_lines.stop()


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(help="An Envoy bootstrap, or a file with the `forebay` block alone.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Find what in a config would bite, and what to write instead. Exit status 1 if there is any.

    Warnings alone do not count. Example: forebay check envoy/envoy.yaml
    """
    from extproc import check as room  # here: Envoy's types take a second to load

    report = room.check_file(file)
    typer.echo((room.as_json if as_json else room.as_text)(report.findings, report.notes))
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def attach(
    file: Annotated[Path, typer.Argument(help="Your Envoy bootstrap.")],
    pool: Annotated[
        list[str] | None,
        typer.Option(help="A cluster that is a pool, the small one first. Default: by the routes."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="POOL=NAME", help="What a pool's servers call their model."),
    ] = None,
    listener: Annotated[
        str | None, typer.Option(help="Which listener, if several lead to the pools.")
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Write it; the old file stays as FILE.bak, or FILE.bak.2 if that is there.",
        ),
    ] = False,
) -> None:
    """Put Forebay into an existing Envoy config, or renew what an earlier version put there. Shows
    what it would change, as a diff.

    Example: forebay attach envoy.yaml --model small=qwen-7b --write
    """
    from extproc import attach as room  # here: no other command needs it

    try:
        old = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _fail(UpError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'no UTF-8'}"))
    options = room.Options(
        pools=tuple(pool or ()), models=_pairs("--model", model), listener=listener
    )
    try:
        attached = room.attach(old, options)
    except room.AttachError as error:
        _fail(UpError(f"{file}: {error}"))
    for note in attached.notes:
        typer.echo(f"note: {note}", err=True)
    if attached.text == old:
        typer.echo(f"{file}: nothing to add. Do its values fit? forebay check {file}", err=True)
    elif write:
        backup = _replace(file, attached.text)
        typer.echo(f"written; the old file is {backup}. Next: forebay check {file}", err=True)
    else:
        typer.echo(room.unified_diff(old, attached.text, str(file)), nl=False)
        typer.echo("nothing is written yet; --write does it", err=True)


def _pairs(flag: str, entries: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for entry in entries or ():
        name, equals, value = entry.partition("=")
        if not equals:
            _fail(UpError(f"{flag} {entry}: write it as POOL=NAME"))
        pairs[name] = value
    return pairs


def _replace(file: Path, text: str) -> Path:
    """At once or not at all; what was there stays beside it, under the name given back."""
    new = file.with_name(f"{file.name}.new")
    try:
        backup = _new_backup(file)
        shutil.copy2(file, backup)
        new.write_bytes(text.encode("utf-8"))
        shutil.copymode(file, new)
        new.replace(file)
    except OSError as error:
        _fail(UpError(f"{file}: cannot be written: {error.strerror}"))
    return backup


def _new_backup(file: Path) -> Path:
    """FILE.bak, or the first of FILE.bak.2, FILE.bak.3 and so on that is not there: an earlier one
    holds what the user wrote. Made empty, so that nobody else takes the name."""
    backup, number = file.with_name(f"{file.name}.bak"), 1
    while True:
        try:
            backup.open("x").close()
            return backup
        except FileExistsError:
            number += 1
            backup = file.with_name(f"{file.name}.bak.{number}")


app.command("plan")(plan.command)
app.command("costs")(costs.command)
app.command("doctor")(doctor.command)
app.command("route")(decision.command)
app.command("train-router")(learning.command)
app.command("vllm")(vllm_profiles.vllm)
app.add_typer(caching.app, name="cache")
app.add_typer(sim.app, name="sim")
app.add_typer(bench.app, name="bench")
