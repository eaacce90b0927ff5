"""Adds lines to a file, from threads of their own: a disk that hangs must hold up nobody, not even
the end of the process. A line is added whole or not at all."""

import asyncio
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

# A pipe is not waited for: nobody may ever read it.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
_TIME_LIMIT_S = 5.0
_MOST_BYTES = 256 * 1024 * 1024


class NotAdded(Exception):
    """The message says why."""


class LinesFile:
    def __init__(self, path: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._written = threading.Event()
        self._written.set()
        self._turn = asyncio.Lock()

    async def add(self, line: bytes, time_limit_s: float = _TIME_LIMIT_S) -> None:
        """`line`: without its end. Raises NotAdded; one that takes too long may still be added."""
        async with self._turn:
            if not self._written.is_set():
                raise NotAdded(f"{self._path}: a line before is not written yet")
            why = await self._in_time(line, time_limit_s)
        if why:
            raise NotAdded(f"{self._path}: {why}")

    async def _in_time(self, line: bytes, time_limit_s: float) -> str:
        """Why it is not; empty if it is."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def tell(why: str) -> None:
            if not done.done():
                done.set_result(why)

        def write() -> None:
            why = self._write(line + b"\n")
            self._written.set()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell, why)

        self._written.clear()
        threading.Thread(target=write, name="outcome", daemon=True).start()
        try:
            async with asyncio.timeout(time_limit_s):
                return await done
        except TimeoutError:
            return f"not written within {time_limit_s:g} s"

    def _write(self, line: bytes) -> str:
        """As above, in the thread."""
        try:
            file = os.open(self._path, _FLAGS, 0o600)
        except OSError as error:
            return error.strerror or "cannot be opened"
        try:
            if not S_ISREG(os.fstat(file).st_mode):
                return "it is no regular file"
            fcntl.flock(file, fcntl.LOCK_EX)
            before = os.fstat(file).st_size
            if before + len(line) > self._most_bytes:
                return f"it has {before:,} bytes: train from it, and begin another"
            if os.write(file, line) < len(line):  # half a line would spoil the file
                os.ftruncate(file, before)
                return "no room for a whole line"
        except OSError as error:
            return error.strerror or "cannot be written"
        finally:
            os.close(file)
        return ""
