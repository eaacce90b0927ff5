"""The log's thread: JSON lines, and a reader that stalls stops neither the loop nor the end."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from extproc import logs


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(what a reader reads, what is written to); the writing side does not block."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    yield reads, writes
    os.close(reads)
    os.close(writes)


def test_each_line_is_json_with_its_facts(capfd: pytest.CaptureFixture[str]) -> None:
    writer = logs.start()
    logs.append(logs.exchange_line() | {"tenant": "m\xfcller", "ms": 1.5})
    try:
        raise ValueError("SECRET")
    except ValueError:
        logging.getLogger("b").exception("it failed")
    writer.stop()
    first, second = capfd.readouterr().err.splitlines()
    line = json.loads(first)
    assert (line["message"], line["tenant"], line["ms"]) == ("exchange", "m\xfcller", 1.5)
    assert json.loads(second)["error"] == "ValueError"
    assert "SECRET" not in second


def test_text_that_is_no_unicode_is_a_line_too(capfd: pytest.CaptureFixture[str]) -> None:
    writer = logs.start()
    logs.append(logs.exchange_line() | {"tenant": "a\ud800b"})
    logs.append(logs.exchange_line() | {"tenant": "next"})
    writer.stop()
    tenants = [json.loads(line)["tenant"] for line in capfd.readouterr().err.splitlines()]
    assert tenants == ["a\ud800b", "next"]


def test_a_reader_that_stalls_holds_up_nobody(pipe: tuple[int, int]) -> None:
    writer = logs.start(pipe[1])
    began = time.monotonic()
    for number in range(11_500):
        logging.getLogger("a").info("line %d", number)
    writer.stop()
    assert time.monotonic() - began < 5
    assert logs.dropped_lines() >= 400


def test_after_a_stall_no_line_is_lost_that_had_room_to_wait(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    writer = logs.start(writes)
    for number in range(5_000):
        logs.append({"number": number})
    time.sleep(0.5)  # the pipe is full by now
    seen = b""
    while seen.count(b"\n") < 5_000:
        seen += os.read(reads, 65536)
    writer.stop()
    assert [json.loads(line)["number"] for line in seen.splitlines()] == list(range(5_000))
    assert logs.dropped_lines() == 0


def test_a_process_ends_while_nobody_reads_its_log() -> None:
    code = (
        "from extproc import logs\n"
        "writer = logs.start()\n"
        "for number in range(5000): logs.append({'number': number})\n"
        "import time; time.sleep(0.5); writer.stop()\n"
    )
    quiet = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, env=quiet)
    try:
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
