"""Vectors of all texts by the real MiniLM, computed once and timed on the way. Never invents one:
a text that the model refuses stays without."""

import asyncio
import time
from collections.abc import Iterable
from typing import NamedTuple

from extproc.bench.lab import BenchError, say
from extproc.embedders import EmbedderUnavailable
from extproc.embedders.onnx import ModelFiles, OnnxEmbedder
from extproc.embedders.protocol import Vector

_LOADED_WITHIN_S = 60.0
_TICK_S = 0.002
_ASKERS = 4


class Known:
    """An embedder that only has what was computed before, so that it takes no time."""

    def __init__(self, model: str, vectors: dict[str, Vector | EmbedderUnavailable]) -> None:
        self.model = model
        read = (v for v in vectors.values() if not isinstance(v, EmbedderUnavailable))
        self.dimensions = len(next(read, ()))
        self._vectors = vectors

    def start(self) -> None:
        pass

    async def embed(self, text: str) -> Vector:
        found = self._vectors[text]
        if isinstance(found, EmbedderUnavailable):
            raise found
        return found

    def vector(self, text: str) -> Vector | None:
        """None: the model does not read it whole."""
        found = self._vectors[text]
        return None if isinstance(found, EmbedderUnavailable) else found

    async def close(self) -> None:
        pass


class Embedded(NamedTuple):
    known: Known
    took_ms: list[float]
    """Of each text, alone, as a request would wait: wall time, by way of the worker."""
    lags_ms: list[float]
    """How late the event loop was while the worker had always more to do."""


async def embed(texts: Iterable[str], busy_s: float) -> Embedded:
    """BenchError: the model is not there, or does not answer."""
    try:
        embedder = OnnxEmbedder(ModelFiles.minilm(), time_limit_s=_LOADED_WITHIN_S)
    except ValueError as error:
        raise BenchError(str(error)) from error
    unique = list(dict.fromkeys(texts))
    embedder.start()
    try:
        await _until_ready(embedder)
        say(f"embedding {len(unique):,} texts")
        vectors: dict[str, Vector | EmbedderUnavailable] = {}
        took_ms: list[float] = []
        for number, text in enumerate(unique, 1):
            began = time.perf_counter()
            vectors[text] = await _embed(embedder, text)
            took_ms.append((time.perf_counter() - began) * 1000)
            if number % 1000 == 0:
                say(f"  {number:,}")
        say(f"the event loop while embedding is busy, {busy_s:g} s")
        lags_ms = await _busy(embedder, unique, busy_s)
        return Embedded(Known(embedder.model, vectors), took_ms, lags_ms)
    finally:
        await embedder.close()


async def _until_ready(embedder: OnnxEmbedder) -> None:
    until = time.monotonic() + _LOADED_WITHIN_S
    while True:
        try:
            await embedder.embed("ready")
            return
        except EmbedderUnavailable as error:
            if time.monotonic() > until:
                raise BenchError(f"the embedder does not start: {error}") from error
        await asyncio.sleep(0.05)


async def _embed(embedder: OnnxEmbedder, text: str) -> Vector | EmbedderUnavailable:
    try:
        return await embedder.embed(text)
    except EmbedderUnavailable as error:
        if error.why != "too_long":
            raise BenchError(f"the embedder failed: {error}") from error
        return error


async def _busy(embedder: OnnxEmbedder, texts: list[str], for_s: float) -> list[float]:
    async def ask(first: int) -> None:
        for number in range(first, 10**9, _ASKERS):
            await _embed(embedder, texts[number % len(texts)])

    async with asyncio.TaskGroup() as tasks:
        askers = [tasks.create_task(ask(first)) for first in range(_ASKERS)]
        lags_ms: list[float] = []
        until = time.perf_counter() + for_s
        while (before := time.perf_counter()) < until:
            await asyncio.sleep(_TICK_S)
            lags_ms.append((time.perf_counter() - before - _TICK_S) * 1000)
        for asker in askers:
            asker.cancel()
    return lags_ms
