"""What the tests of the simulated server share: a server on a free port, raw bytes, SSE, gauges.

Holds no tests itself.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from serving.sim import SimSettings, running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ABORT = "/inference/v1/abort_requests"


@dataclass
class Sim:
    port: int
    http: aiohttp.ClientSession

    async def json(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        async with self.http.request(method, path, **options) as response:
            return response.status, await response.json()

    async def events(self, path: str, body: dict[str, Any], rid: str | None = None) -> list[Any]:
        """Post a stream to its end; the data of all its events, "[DONE]" as it is."""
        headers = {"x-request-id": rid} if rid else {}
        async with self.http.post(path, json=body, headers=headers) as response:
            assert response.status == 200
            return parse_sse(await response.read())

    async def faults(self, **faults: Any) -> None:
        status, shown = await self.json("POST", "/sim/faults", json=faults)
        assert status == 200, shown

    async def requests(self) -> list[Any]:
        return (await self.json("GET", "/sim/requests"))[1]["requests"]

    async def metrics(self) -> dict[str, float]:
        """Samples by name, without the labels that are always the same and vLLM's prefix."""
        async with self.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        samples: dict[str, float] = {}
        for line in lines:
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            assert 'engine="0"' in name
            assert 'model_name="small"' in name
            for always in ('model_name="small"', 'engine="0"', "vllm:"):
                name = name.replace(always, "")
            samples[name.replace(",", "").replace("{}", "")] = float(value)
        return samples

    async def gauges(self) -> tuple[float, float]:
        """(running, waiting)"""
        samples = await self.metrics()
        return samples["num_requests_running"], samples["num_requests_waiting"]

    async def until_gauges(self, running: int, waiting: int, within_s: float = 1.0) -> None:
        """Wait for these gauges; fails if they do not come in time."""
        async with asyncio.timeout(within_s):
            while True:
                if await self.gauges() == (running, waiting):
                    return
                await asyncio.sleep(0.01)

    async def until_ended(self, how: str, within_s: float = 1.0) -> None:
        """Wait until the first request in the log has ended like this."""
        async with asyncio.timeout(within_s):
            while True:
                if (await self.requests())[0]["ended"] == how:
                    return
                await asyncio.sleep(0.01)

    async def connect(self) -> socket.socket:
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        return connection

    async def send(self, path: str, body: dict[str, Any]) -> socket.socket:
        """Post over a socket of our own, to see or to cut the bytes; the caller closes it."""
        connection = await self.connect()
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: sim\r\nContent-Length: {len(payload)}\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(connection, head.encode() + payload)
        return connection


@asynccontextmanager
async def simulator(**settings: Any) -> AsyncIterator[Sim]:
    """A running server, fast unless told otherwise, called `small` and `auto`."""
    fast: dict[str, Any] = {
        "port": 0,
        "models": ["small", "auto"],
        "prefill_ms_per_1k_tokens": 0,
        "decode_ms_per_token": 1,
        "default_max_tokens": 6,
    }
    async with (
        running(SimSettings(**{**fast, **settings})) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
    ):
        yield Sim(port, http)


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": "Hi there"}], **members}


def text(**members: Any) -> dict[str, Any]:
    return {"model": "small", "prompt": "Once upon a time", **members}


def parse_sse(body: bytes) -> list[Any]:
    """The data of each event, as JSON where it is some; comments are left out."""
    assert body.endswith(b"\n\n")
    events = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return [
        "[DONE]" if event == b"[DONE]" else json.loads(event)
        for event in events
        if not event.startswith(b":")
    ]


def content(events: list[Any]) -> str:
    """The text of the first choice of a streamed chat or completion."""
    pieces = [
        choice.get("delta", choice).get("content", choice.get("text", ""))
        for event in events
        if event != "[DONE]"
        for choice in event.get("choices", [])
        if choice["index"] == 0
    ]
    return "".join(pieces)


async def receive_until(
    connection: socket.socket, enough: Callable[[bytes], bool], within_s: float = 2.0
) -> bytes:
    """Read until `enough(all so far)` or a clean end."""
    received = b""
    async with asyncio.timeout(within_s):
        while not enough(received):
            piece = await asyncio.get_running_loop().sock_recv(connection, 65536)
            if not piece:
                break
            received += piece
    return received


async def receive_all(connection: socket.socket) -> tuple[bytes, bool]:
    """All bytes to the end of the connection, and whether it ended with a reset."""
    received = b""
    async with asyncio.timeout(2):
        while True:
            try:
                piece = await asyncio.get_running_loop().sock_recv(connection, 65536)
            except ConnectionResetError:
                return received, True
            if not piece:
                return received, False
            received += piece
