"""Model servers that answer with the bytes a test gives them, in pieces that are cut where the
request says: its first message is the list of places. They never read more of a request."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

# So long between two pieces that Envoy reads them apart.
PAUSE_S = 0.01


class Scripted:
    """One answer for all; `answer` writes it."""

    async def answer(self, head: str, cuts: list[int], writer: asyncio.StreamWriter) -> None:
        """To a request with this head, in lower case."""
        raise NotImplementedError

    async def serve(
        self, model: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                await self._serve_one(model, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve_one(
        self, model: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if not head.startswith("post"):
            models = json.dumps({"data": [{"id": model}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(models) + models)
            return
        length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
        request = json.loads(await reader.readexactly(int(length.partition(":")[2])))
        await self.answer(head, json.loads(request["messages"][0]["content"]), writer)


@contextmanager
def served(script: Scripted, models: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The script as the server of each model, on free ports, in a thread of its own; their URLs by
    the keys of `models`."""
    urls: dict[str, str] = {}
    ready, loops = threading.Event(), list[asyncio.AbstractEventLoop]()
    stop = asyncio.Event()

    async def run() -> None:
        servers = list[asyncio.Server]()
        for name, model in models.items():
            server = await asyncio.start_server(partial(script.serve, model), "127.0.0.1", 0)
            urls[name] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            servers.append(server)
        loops.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        for server in servers:  # before the loop ends: who connects now would never be served
            server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait()
    try:
        yield urls
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()
