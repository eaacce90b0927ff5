"""The life of one worker process, seen from its owner: started, asked, ended. Never left behind:
it ends when its input is closed, which the system does when the owner dies."""

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import suppress
from typing import NamedTuple, Self

from extproc.embedders.frames import FAILED, LENGTH, READY, frame

_LOADED_WITHIN_S = 60.0
_ANSWERS_WITHIN_S = 10.0
"""A text takes 0.2 s at most; a worker that has not answered for so long never will."""
_ENDS_WITHIN_S = 1.0
_MOST_ANSWER_BYTES = 1024 * 1024


class WorkerFailed(Exception):
    """It did not start, or answers no more. The message says why and holds no text."""


class Ready(NamedTuple):
    model: str
    dimensions: int


class WorkerProcess:
    """Use as `async with`: the process lives as long. One question at a time."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._arguments = arguments

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn(theirs)
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()  # at which it ends
        try:
            await self._status()
        finally:
            self._process.kill()
            self._process.wait()

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """By `subprocess`, which takes vfork, and not by the event loop: uvloop forks, and what
        gRPC hangs on a fork would stop its threads or write lines of its own among the logs."""
        return subprocess.Popen(
            (sys.executable, "-m", "extproc.embedders.onnx_worker", *self._arguments),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,  # a library's last words might quote a text
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> Ready:
        """Wait until the model is loaded."""
        said = await self._read(_LOADED_WITHIN_S)
        if said[:1] == FAILED:
            raise WorkerFailed(said[1:].decode(errors="replace"))
        if said[:1] != READY:
            raise WorkerFailed("it said something that is not understood")
        return Ready(**json.loads(said[1:]))

    async def ask(self, text: str) -> bytes:
        """The answer, as in `frames`."""
        try:
            self._writer.write(frame(text.encode(errors="replace")))
            await self._writer.drain()
        except ConnectionError:
            raise WorkerFailed(f"it ended with status {await self._status()}") from None
        return await self._read(_ANSWERS_WITHIN_S)

    async def _read(self, within_s: float) -> bytes:
        try:
            async with asyncio.timeout(within_s):
                [length] = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                if length > _MOST_ANSWER_BYTES:
                    raise WorkerFailed("it said something that is not understood")
                return await self._reader.readexactly(length)
        except TimeoutError:
            raise WorkerFailed(f"no word from it within {within_s:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerFailed(f"it ended with status {await self._status()}") from None

    async def _status(self) -> int | None:
        """None: it has not ended in time."""
        with suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self._process.wait, _ENDS_WITHIN_S)
        return None
