"""The log's thread: JSON lines, and a reader that stalls stops neither the loop nor the end."""

import json
import logging
import sys
import threading
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


def test_each_line_is_json_with_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    writer = logs.start()
    logs.exchange({"tenant": "m\xfcller", "ms": 1.5})
    try:
        raise ValueError("SECRET")
    except ValueError:
        logging.getLogger("b").exception("it failed")
    writer.stop()
    first, second = capsys.readouterr().err.splitlines()
    line = json.loads(first)
    assert (line["message"], line["tenant"], line["ms"]) == ("exchange", "m\xfcller", 1.5)
    assert json.loads(second)["error"] == "ValueError"
    assert "SECRET" not in second


class Stalled:
    """A standard error whose reader does not read until it is let go."""

    def __init__(self) -> None:
        self.reads = threading.Event()

    def write(self, text: str) -> int:
        self.reads.wait(30)
        return len(text)

    def flush(self) -> None:
        pass


def test_a_reader_that_stalls_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = Stalled()
    monkeypatch.setattr(sys, "stderr", stalled)
    writer = logs.start()
    dropped = logs.dropped_lines()
    began = time.monotonic()
    for number in range(11_500):
        logging.getLogger("a").info("line %d", number)
    writer.stop()
    assert time.monotonic() - began < 5
    assert logs.dropped_lines() >= dropped + 400
    stalled.reads.set()
