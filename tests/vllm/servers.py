"""Real vLLM servers on CPU for the tests: started, watched through their own metrics, ended.

Never takes a server as started that does not answer, and never leaves one running.
"""

import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from tests.vllm.install import Places

MAX_NUM_SEQS = 8

_HEALTHY_WITHIN_S = 240.0
_SAY_EVERY_S = 10.0
_ENDS_WITHIN_S = 10.0

# What the pools' servers are started with.
_TALKS = ("--max-model-len", "2048", "--enable-scale-out", "--enable-prompt-tokens-details")
_TALKS += ("--scheduling-policy", "priority")
# Four layers of random weights: gibberish four times as fast, by the same engine.
_FAST = ("--load-format", "dummy", "--hf-overrides", '{"num_hidden_layers":4}')


class Server:
    """One vLLM server: an API process, and the engine process under it."""

    def __init__(
        self,
        name: str,
        model: str,
        core: int,
        python: Path,
        weights: Path,
        log: Path,
        flags: Sequence[str],
    ) -> None:
        """`weights`: what it serves as `model`, on the CPU `core`."""
        self.name = name
        self.model = model
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._ended = False
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(weights), "--served-model-name", model]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", str(MAX_NUM_SEQS)]
        command += ["--disable-access-log-for-endpoints", "/health,/metrics"]
        own = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": str(core),
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | own,
                start_new_session=True,  # API and engine are one group, to be ended as one
                preexec_fn=_die_with_parent,
            )

    def is_healthy(self) -> bool:
        try:
            self._get("/health")
        except OSError:  # refused, or any status but 200
            return False
        return True

    def client(self) -> openai.OpenAI:
        """Straight to the server, past the gateway."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def metric(self, name: str) -> float:
        """The sum of a gauge's or a counter's samples; it must be there."""
        samples = [
            float(line.rpartition(" ")[2])
            for line in self._get("/metrics").decode().splitlines()
            if line.startswith(name + "{")
        ]
        assert samples, f"{self.url}/metrics has no {name}"
        return sum(samples)

    def running(self) -> float:
        return self.metric("vllm:num_requests_running")

    def waiting(self) -> float:
        return self.metric("vllm:num_requests_waiting")

    def wait_until_idle(self) -> None:
        end = time.monotonic() + 10
        while self.running() + self.waiting() > 0:
            assert time.monotonic() < end, f"{self.name} still works on something"
            time.sleep(0.05)

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        named = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children.split()}
        [engine] = [pid for pid, name in named.items() if name.startswith(b"VLLM::EngineCore")]
        return engine

    def kill(self) -> None:
        """SIGKILL to API and engine at once, as a machine's death would be."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._ended = True

    def end(self) -> None:
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_ENDS_WITHIN_S)
        self.kill()

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])

    def signal(self, number: int) -> None:
        """To API and engine."""
        if self._ended:
            return  # the number of the group may be somebody else's by now
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return answer.read()


class Fleet:
    """The servers of a test run: small, large, embedder, and twin-1 and twin-2, which have the same
    model. One that a test has killed or broken is started anew when another test wants it."""

    def __init__(self, places: Places, say: Callable[[str], None]) -> None:
        self._places = places
        self.say = say
        self._servers: dict[str, Server] = {}
        self._starts = 0

    def living(self, *pools: str) -> list[Server]:
        """The servers of these pools, idle; those that are not there are started at once."""
        new = [pool for pool in pools if not self._lives(pool)]
        for pool in new:
            if pool in self._servers:
                self._servers[pool].kill()
            self._servers[pool] = self._start(pool)
        self._wait([self._servers[pool] for pool in new])
        servers = [self._servers[pool] for pool in pools]
        for server in servers:
            server.wait_until_idle()
        return servers

    def started(self) -> Sequence[Server]:
        return list(self._servers.values())

    def end(self) -> None:
        for server in self._servers.values():
            server.end()

    def _lives(self, pool: str) -> bool:
        return pool in self._servers and self._servers[pool].is_healthy()

    def _start(self, pool: str) -> Server:
        at, cores = self._places, sorted(os.sched_getaffinity(0))
        at.logs.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        log = at.logs / f"{self._starts}-{pool}.log"
        match pool:
            case "small":  # the real model; its words are compared
                return Server(pool, "small-7b", cores[0], at.python, at.model, log, _TALKS)
            case "large":
                flags = (*_TALKS, *_FAST)
                return Server(pool, "large-70b", cores[-1], at.python, at.model, log, flags)
            case "twin-1" | "twin-2":  # two replicas of one pool, in blocks of 32 tokens
                core = cores[0] if pool == "twin-1" else cores[-1]
                flags = (*_TALKS, *_FAST, "--block-size", "32")
                return Server(pool, "twin", core, at.python, at.model, log, flags)
            case _:
                flags = ("--runner", "pooling")
                return Server(pool, "minilm", cores[0], at.python, at.embedding_model, log, flags)

    def _wait(self, servers: list[Server]) -> None:
        began = said = time.monotonic()
        waited_for = list(servers)
        for server in servers:
            self.say(f"starting vLLM {server.name} on port {server.port}, log in {server.log}")
        while waited_for:
            now = time.monotonic()
            for server in list(waited_for):
                if server.is_healthy():
                    self.say(f"vLLM {server.name} is healthy after {now - began:.0f} s")
                    waited_for.remove(server)
                elif (status := server.process.poll()) is not None:
                    pytest.fail(
                        f"vLLM {server.name} ended with {status}:\n{server.last_words()}",
                        pytrace=False,
                    )
            if now - said > _SAY_EVERY_S and waited_for:
                names = " and ".join(server.name for server in waited_for)
                self.say(f"... still waiting for {names}, {now - began:.0f} s")
                said = now
            if now - began > _HEALTHY_WITHIN_S and waited_for:
                late = waited_for[0]
                pytest.fail(
                    f"vLLM {late.name} is not healthy after {_HEALTHY_WITHIN_S:g} s:\n"
                    f"{late.last_words()}",
                    pytrace=False,
                )
            time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _die_with_parent() -> None:
    """In the child: SIGTERM if pytest itself is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
