"""Everything that a benchmark starts, and that is stopped with it, whatever ends it.

Loads only what it started itself, on the loopback interface.
"""

import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import yaml
from rich.console import Console

from extproc.bench.envoy import envoy_config
from extproc.bench.load import Job, Outcome
from extproc.up import Child, Interrupted, Options, Stack, find_envoy, free_port, reference_config

_progress = Console(stderr=True, highlight=False)


class BenchError(Exception):
    """The benchmark cannot be trusted or not be run; one sentence for a person."""


def say(line: str) -> None:
    """Progress, on standard error."""
    _progress.print(line, style="dim", markup=False, soft_wrap=True)


class Lab:
    """Owns a folder, the upstream, the load generators and every process of the contenders."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
        self._interrupted = interrupted
        self._children: list[Child] = []
        self._stacks: list[Stack] = []
        self._loaders: dict[str, subprocess.Popen[bytes]] = {}

    def check(self) -> None:
        if self._interrupted():
            raise Interrupted

    def stop(self) -> None:
        for stack in self._stacks:
            stack.stop()
        for child in reversed(self._children):
            child.stop()
        for loader in self._loaders.values():
            loader.kill()
            loader.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- starting ---------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        command: tuple[str, ...],
        health_url: str,
        within_s: float = 30.0,
    ) -> int:
        """Start a process and wait until `health_url` answers 200; its pid."""
        child = Child(name, command, self.folder / f"{name}.log", health_url)
        child.start()
        self._children.append(child)
        child.wait_until_healthy(self.check, within_s)
        return child.process.pid

    def upstream(self, name: str = "upstream", chunk_ms: float = 1.0) -> str:
        """The constant model server; its URL."""
        port = free_port()
        command = (sys.executable, "-m", "extproc.bench.upstream", "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        self.start(name, (*command, "--chunk-ms", str(chunk_ms)), f"{url}/health")
        return url

    def envoy(
        self,
        name: str,
        upstream: str,
        ext_proc: dict[str, Any] | None = None,
        edit: Callable[[Any], None] = lambda document: None,
    ) -> tuple[str, int]:
        """A plain Envoy before `upstream`, `ext_proc` its processing mode if it has a processor
        (on the socket `socket(name)`), its config changed by `edit`; (URL, pid)."""
        port, admin_port = free_port(), free_port()
        document = envoy_config(port, admin_port, upstream, self.socket(name), ext_proc)
        edit(document)
        file = self.folder / f"{name}-envoy.yaml"
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        command = (find_envoy(), "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1")
        pid = self.start(
            f"{name}-envoy",
            (*command, "--log-level", "warning"),
            f"http://127.0.0.1:{admin_port}/ready",
        )
        return f"http://127.0.0.1:{port}", pid

    def socket(self, name: str) -> Path:
        return self.folder / f"{name}.sock"

    def minimal(self, name: str, does: str) -> int:
        """A yardstick processor on `socket(name)`; its pid."""
        command = (sys.executable, "-m", "extproc.bench.minimal", "--does", does)
        child = Child(
            f"{name}-processor",
            (*command, "--listen", f"unix:{self.socket(name)}"),
            self.folder / f"{name}-processor.log",
            health_url="",
        )
        child.start()
        self._children.append(child)
        return child.process.pid

    def forebay(self, name: str, upstream: str, edit: Callable[[Any], None]) -> Stack:
        """The reference config, its document changed by `edit`, with the real processor."""
        document = yaml.safe_load(reference_config().read_text("utf-8"))
        edit(document)
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        pools = document["node"]["metadata"]["forebay"]["pools"]
        options = Options(
            config=file,
            port=0,
            envoy_admin_port=0,
            admin_port=0,
            backends=dict.fromkeys(pools, (upstream,)),
            concurrency=1,
        )
        stack = Stack(options, say=lambda line: None, interrupted=self._interrupted)
        self._stacks.append(stack)
        stack.start()
        return stack

    # --- loading ----------------------------------------------------------------------------------

    def load(self, job: Job) -> Outcome:
        """Run one job to its end. What is wrong in it is in the outcome."""
        return Outcome(**self.ask("extproc.bench.load", job))

    def ask(self, loader: str, job: object) -> Any:
        """Let a load generator, a module that takes jobs on its standard input, do one."""
        process = self.loader(loader)
        assert process.stdin
        assert process.stdout
        process.stdin.write(orjson.dumps(job) + b"\n")
        process.stdin.flush()
        while not select.select((process.stdout,), (), (), 0.2)[0]:
            self.check()
        line = process.stdout.readline()
        if not line:
            raise BenchError("the load generator ended; its last words are above")
        return orjson.loads(line)

    def loader(self, module: str) -> subprocess.Popen[bytes]:
        """The process of a load generator, started when it is first wanted."""
        if module not in self._loaders:
            self._loaders[module] = subprocess.Popen(
                (sys.executable, "-m", module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        return self._loaders[module]


@contextmanager
def lab() -> Iterator[Lab]:
    """A Lab that is stopped at the end, and by Ctrl-C or SIGTERM too."""
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.signal(signum, lambda *_: stop.set()) for signum in signals}
    made = Lab(stop.is_set)
    try:
        yield made
    finally:
        made.stop()
        for signum, handler in before.items():
            signal.signal(signum, handler)
