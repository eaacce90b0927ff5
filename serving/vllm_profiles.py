"""How to start a real vLLM server for a pool: its arguments and environment, from the policy.

The policy says already how many requests a server gets at once, how long they may be and when they
must end; a server that is told otherwise queues where nobody looks. Must never put a secret on a
command line, and never knows the hardware: what a GPU needs is handed through as it is.
"""

import ipaddress
import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from extproc import config
from extproc.extras import install

_BY_KIND: Mapping[str, tuple[str, ...]] = {
    "generate": (
        # The body's `priority` counts; under the default, fcfs, it does not.
        *("--scheduling-policy", "priority"),
        "--enable-prefix-caching",
        # Cached tokens in `usage`: they cost less.
        "--enable-prompt-tokens-details",
        # Opens /inference/v1/abort_requests, by which an answer is ended well-formed in time.
        "--enable-scale-out",
    ),
    "embeddings": ("--runner", "pooling"),
}


class ProfileError(Exception):
    """This pool cannot be started; the message is one sentence for a person."""


@dataclass(frozen=True)
class Launch:
    """One vLLM server, ready to start."""

    model: str
    """What vLLM loads: a folder, or a name on the Hugging Face Hub."""
    flags: tuple[str, ...]
    env: Mapping[str, str]
    """Beside the caller's own environment, from which vLLM takes VLLM_API_KEY."""

    @property
    def argv(self) -> tuple[str, ...]:
        return ("vllm", "serve", self.model, *self.flags)

    def shell(self) -> str:
        """The same as one line for a shell."""
        assignments = (f"{name}={shlex.quote(value)}" for name, value in self.env.items())
        return " ".join((*assignments, shlex.join(self.argv)))


def profile(
    policy: config.Config,
    pool: str,
    model: str,
    *,
    cache_root: Path,
    replica: int | None = None,
    extra: Sequence[str] = (),
) -> Launch:
    """The server of `pool`, or of its `replica` (0 is the first endpoint) if it has several.

    cache_root   where vLLM keeps compiled code; on a disk that outlives the server, or each start
                 compiles anew
    extra        further vLLM flags; the profile's own come after them, so they win

    Raises ProfileError.
    """
    if pool not in policy.pools:
        raise ProfileError(f"no pool is named {pool!r}; there are {', '.join(policy.pools)}")
    settings = policy.pools[pool]
    if settings.server != "vllm":
        raise ProfileError(f"the servers of {pool} are not vLLM (server: {settings.server})")
    host, port = _address(pool, settings.endpoints, replica)
    flags = [
        *extra,
        # Only where the gateway looks for it.
        *("--host", host, "--port", str(port)),
        *("--served-model-name", settings.model),
        # As many at once as the gateway sends: what waits shall wait there, where it is counted,
        # bounded and shed.
        *("--max-num-seqs", str(settings.slots)),
        *_BY_KIND[settings.serves],
        # After SIGTERM running answers finish; none lasts longer than this. By default they stall.
        *("--shutdown-timeout", str(_longest_answer_s(policy))),
        # Both are asked for several times a second.
        *("--disable-access-log-for-endpoints", "/health,/metrics"),
    ]
    if settings.context is not None:
        flags += ("--max-model-len", str(settings.context))
    return Launch(model, tuple(flags), {"VLLM_CACHE_ROOT": str(cache_root)})


def _address(pool: str, endpoints: Sequence[str], replica: int | None) -> tuple[str, int]:
    if not endpoints:
        raise ProfileError(f"the pool {pool} has no endpoint to listen at")
    if replica is None and len(endpoints) > 1:
        raise ProfileError(f"the pool {pool} has {len(endpoints)} replicas; say which: --replica 0")
    if not 0 <= (replica or 0) < len(endpoints):
        raise ProfileError(
            f"the pool {pool} has no replica {replica}; the last is {len(endpoints) - 1}"
        )
    url = urlsplit(endpoints[replica or 0])
    if url.scheme != "http" or not url.hostname:
        raise ProfileError(f"{url.geturl()}: only http:// endpoints can be started from here")
    return url.hostname, url.port or 80


def _longest_answer_s(policy: config.Config) -> int:
    return math.ceil(policy.longest_s)


def vllm(
    pool: Annotated[str, typer.Option(help="The pool that the server is for.")],
    model: Annotated[str, typer.Option(help="What vLLM loads: a folder or a Hub name.")],
    config_file: Annotated[
        Path, typer.Option("--config", help="The Envoy bootstrap, or the `forebay` block alone.")
    ],
    replica: Annotated[
        int | None, typer.Option(help="Which endpoint of the pool, from 0, if it has several.")
    ] = None,
    cache_root: Annotated[
        Path,
        typer.Option(
            envvar="VLLM_CACHE_ROOT", help="Compiled code is kept here, for the next start."
        ),
    ] = Path("~/.cache/vllm"),
    print_only: Annotated[
        bool, typer.Option("--print", help="Show the command; start nothing.")
    ] = False,
    vllm_flags: Annotated[
        list[str] | None, typer.Argument(help="After `--`: further flags for vLLM.")
    ] = None,
) -> None:
    """Start a vLLM server as the policy wants it.

    With VLLM_API_KEY set vLLM asks for that key on /v1 and /inference, but not on /invocations,
    which answers too: let nobody but the gateway reach the port.

    Example: forebay vllm --config envoy/envoy.yaml --pool large --model /models/70b --
    --tensor-parallel-size 4
    """
    try:
        launch = profile(
            config.load(config_file).config,
            pool,
            model,
            cache_root=cache_root.expanduser(),
            replica=replica,
            extra=vllm_flags or (),
        )
        if print_only:
            typer.echo(launch.shell())
            return
        _start(launch)
    except (config.ConfigError, ProfileError) as error:
        typer.echo(f"forebay: {error}", err=True)
        raise typer.Exit(1) from error


def _start(launch: Launch) -> None:
    """Become that server."""
    beside = os.path.dirname(sys.executable)
    program = shutil.which("vllm", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if program is None:
        raise ProfileError(f"there is no vllm; install it with: {install('vllm')}")
    host = launch.flags[launch.flags.index("--host") + 1]
    if not os.environ.get("VLLM_API_KEY") and not _is_loopback(host):
        typer.echo(
            f"forebay: VLLM_API_KEY is not set: whoever reaches {host} can use this server and "
            "stop the answers of others",
            err=True,
        )
    os.execve(program, launch.argv, {**os.environ, **launch.env})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
