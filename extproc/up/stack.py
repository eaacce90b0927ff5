"""The processes that `up` runs: started in order, watched, started again, and all ended.

Owns every process that it starts, and one folder for the config, the socket and the logs.
"""

import ctypes
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import yaml

from extproc.up.render import (
    Interrupted,
    Options,
    Rendered,
    UpError,
    find_envoy,
    render,
    until_answered,
)

_HEALTHY_WITHIN_S = 30.0
_STOP_WITHIN_S = 5.0
_RESTARTS = 5


class Stack:
    """Everything that `up` runs. `start`, then `watch` or not, then `stop`, always."""

    config: Rendered
    """What runs; there is one from `start` on."""

    def __init__(
        self,
        options: Options,
        say: Callable[[str], None],
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options = options
        self._say = say
        self._interrupted = interrupted
        self._children: dict[str, Child] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-"))

    def start(self) -> None:
        """Start all and wait until all are healthy; UpError when something cannot, Interrupted."""
        self.config = made = render(self._options, self.folder, self._say, self._check)
        bootstrap = self.folder / "envoy.yaml"
        bootstrap.write_text(yaml.safe_dump(made.document, sort_keys=False, width=1000), "utf-8")
        self._start_pools()
        forebay = (sys.executable, "-m", "extproc")
        self._spawn(
            "processor",
            (*forebay, "serve", "--config", str(bootstrap)),
            f"{made.admin_url}/readyz",
        )
        self._wait("processor")
        threads = self._options.concurrency
        self._spawn(
            "envoy",
            (find_envoy(), "-c", str(bootstrap), "--use-dynamic-base-id")
            + ("--log-level", "warning", "--component-log-level", "misc:error")
            + (("--concurrency", str(threads)) if threads else ()),
            f"{made.envoy_admin_url}/ready",
        )
        self._wait("envoy")

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
                    raise UpError(f"{child.name} keeps dying:\n{child.last_words()}")
                child.restarts += 1
                self._say(f"{child.name} ended ({_ending(status)}); starting it again")
                self.respawn(child.name)

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

    def restart(self, name: str) -> None:
        """SIGTERM, and again when it has ended."""
        self._children[name].stop()
        self.respawn(name)

    def respawn(self, name: str) -> None:
        self._children[name].start()
        self._wait(name)

    def _start_pools(self) -> None:
        pools = self.config.document["node"]["metadata"]["forebay"]["pools"]
        served = self.config.backend_urls.items()
        simulated = [name for name, _ in served if name not in self._options.backends]
        for name in simulated:
            pool, url = pools[name], self.config.backend_urls[name]
            self._spawn(
                name,
                (sys.executable, "-m", "extproc", "sim", "--port", url.rpartition(":")[2])
                + ("--model", str(pool["model"]), "--max-num-seqs", str(pool["slots"]))
                + (("--max-model-len", str(pool["context"])) if "context" in pool else ())
                + tuple(self._options.sim_args.get(name, ())),
                f"{url}/health",
            )
        for name in simulated:
            self._wait(name)

    def _check(self) -> None:
        # A flag, not an exception from the signal handler: that one gets lost where Python
        # ignores exceptions, as it does in its hooks around fork.
        if self._interrupted():
            raise Interrupted

    def _spawn(self, name: str, command: tuple[str, ...], health_url: str) -> None:
        log = self.folder / f"{name}.log"
        self._children[name] = child = Child(name, command, log, health_url)
        child.start()

    def _wait(self, name: str) -> None:
        self._children[name].wait_until_healthy(self._check)
        self._say(f"{name} is healthy")


class Child:
    """One process, its log and its restarts."""

    def __init__(self, name: str, command: tuple[str, ...], log: Path, health_url: str) -> None:
        self.name = name
        self.log = log
        self.health_url = health_url
        self.restarts = 0
        self._command = command
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        try:
            log = self.log.open("ab")
        except OSError as error:
            raise UpError(f"{self.log}: cannot be written ({error.strerror})") from error
        with log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end the others in order
                preexec_fn=_die_with_parent,
            )

    def wait_until_healthy(
        self, check: Callable[[], None], within_s: float = _HEALTHY_WITHIN_S
    ) -> None:
        """UpError when it ends or takes too long; `check` is called meanwhile and may raise."""

        def still_alive() -> None:
            check()
            status = self.process.poll()
            if status is not None:
                raise UpError(
                    f"{self.name} did not start ({_ending(status)}):\n{self.last_words()}"
                )

        answer = until_answered(self.health_url, within_s, still_alive)
        if isinstance(answer, str):
            raise UpError(
                f"{self.name} is not healthy after {within_s:g} s ({self.health_url}: "
                f"{answer}):\n{self.last_words()}"
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


def _die_with_parent() -> None:
    """In the child: get SIGTERM if `up` itself is killed (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
