"""Two simulated replicas of one pool, as processes that a test may end and start again."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from extproc.up.render import free_port

_READY_WITHIN_S = 10.0


class Replica:
    def __init__(self, model: str, flags: tuple[str, ...]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "extproc", "sim", "--port", str(self.port)]
        self._command += ["--model", model, *flags]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait_until_ready(self) -> None:
        end = time.monotonic() + _READY_WITHIN_S
        while True:
            try:
                self.get("/health")
                return
            except OSError:
                assert time.monotonic() < end, f"{self.url} does not answer"
                time.sleep(0.02)

    def get(self, path: str, method: str = "GET") -> bytes:
        asked = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.read()

    def received(self) -> list[dict[str, Any]]:
        return json.loads(self.get("/sim/requests"))["requests"]

    def forget(self) -> None:
        self.get("/sim/requests", "DELETE")

    def counted(self, name: str) -> float:
        """A counter's samples, in sum."""
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@contextmanager
def replicas(model: str, flags: tuple[str, ...] = (), count: int = 2) -> Iterator[list[Replica]]:
    made = [Replica(model, flags) for _ in range(count)]
    try:
        for one in made:
            one.wait_until_ready()
        yield made
    finally:
        for one in made:
            one.end()
