"""What is measured of Forebay's processor alone: its start, a large prompt, its memory in the long
run. Parts of `forebay bench overhead`.
"""

import copy
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import yaml

from extproc.bench.entry import Entry
from extproc.bench.lab import BenchError, Lab, say
from extproc.up import Child, Stack, free_port

_STARTS = 3
_START_WITHIN_S = 30.0
_LARGE_BYTES = 1_000_000
_LARGE_REQUESTS = 40
_SOAK_STEPS = 10


def start_ms(lab: Lab, stack: Stack) -> float:
    """From exec to the first 200 of /readyz, median of a few, with the config that `stack` runs but
    another socket and port."""
    document: Any = copy.deepcopy(stack.config.document)
    port, file = free_port(), lab.folder / "start.yaml"
    document["node"]["metadata"]["forebay"] |= {"admin": f"127.0.0.1:{port}", "drain": "1s"}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    command = (sys.executable, "-m", "extproc", "serve", "--config", str(file))
    listen = ("--listen", f"unix:{lab.socket('start')}")
    took: list[float] = []
    url = f"http://127.0.0.1:{port}/readyz"
    for _ in range(_STARTS):
        child = Child("start", (*command, *listen), lab.folder / "start.log", url)
        began = time.perf_counter()
        child.start()
        try:
            _wait_until_ready(lab, url)
            took.append((time.perf_counter() - began) * 1000)
        finally:
            child.stop()
    return median(took)


def _wait_until_ready(lab: Lab, url: str) -> None:
    until = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < until:
        lab.check()
        with suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return
        time.sleep(0.002)
    raise BenchError(f"the processor is not ready after {_START_WITHIN_S:g} s")


def large_prompt_ms(entry: Entry, requests: int) -> float:
    """CPU that the processor needs for a prompt of 1 MB more than for a small one, in ms. One
    request at a time, so it is also the time that its event loop is busy with it."""
    usual = entry.running.request
    large = replace(
        usual, body=usual.body.replace("Question", "so " * (_LARGE_BYTES // 3) + "Question")
    )
    if len(large.body) < _LARGE_BYTES:
        raise BenchError("the large prompt is not large")
    say(f"a prompt of 1 MB to {entry.name}")
    used = [
        entry.cpu_us(min(requests, _LARGE_REQUESTS), connections=1, request=request)[0][
            "processor_cpu_us"
        ]
        for request in (large, usual)
    ]
    return (used[0] - used[1]) / 1000


def soak(entry: Entry, exchanges: int) -> list[dict[str, float]]:
    """The processor's memory as the exchanges go on."""
    told: list[dict[str, float]] = []
    for _ in range(_SOAK_STEPS):
        entry.load(exchanges // _SOAK_STEPS, limit_s=600.0)
        memory_mib = entry.memory_mib()
        assert memory_mib is not None
        told.append({"exchanges": entry.answers, "memory_mib": memory_mib})
        say(f"soak: {entry.answers} exchanges, {memory_mib:.1f} MiB")
    return told
