"""One request over a connection of its own, HTTP/1.1 or HTTP/2, and all the ways to leave early.

Knows nothing of the gateway. Must never judge an answer: it says what came, and how it ended.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import h2.connection
import h2.errors
import h2.events
import h2.exceptions
from h2.settings import SettingCodes

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: close sends RST
_OPEN_WINDOW_BYTES = 2**24


@dataclass(frozen=True)
class Leave:
    """When the client leaves, whichever comes first, and how."""

    mid_body: bool = False
    """With half of its body sent."""
    after_s: float | None = None
    """Since its request was sent whole."""
    after_pieces: int | None = None
    """Pieces of the answer's body."""
    by_reset: bool = False
    """TCP RST. Else it closes, over HTTP/2 after cancelling its stream."""


STAYS = Leave()


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"
    http2: bool = False
    pause_s: float = 0.0
    """Between the halves of its body."""
    reads_after_s: float = 0.0
    """HTTP/2 only: so long its window stays shut."""
    leave: Leave = STAYS


@dataclass
class Got:
    status: int = 0
    """0: the client saw no head of an answer."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    pieces: int = 0
    end: Literal["whole", "cut", "left"] = "cut"


class _Left(Exception):
    """The client has had enough."""


async def send(address: tuple[str, int], request: Request) -> Got:
    reader, writer = await asyncio.open_connection(*address)
    got = Got()
    client = _Http2(reader, writer) if request.http2 else _Http1(reader, writer)
    try:
        await client.ask(request)
        async with asyncio.timeout(request.leave.after_s):
            await client.read(got, request)
        got.end = "whole"
    except (_Left, TimeoutError):
        got.end = "left"
        if not request.leave.by_reset:
            client.cancel()
    except (asyncio.IncompleteReadError, ConnectionError):
        got.end = "cut"
    finally:
        if request.leave.by_reset:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        else:
            writer.close()
    return got


def _halves(body: bytes) -> tuple[bytes, bytes]:
    return body[: len(body) // 2], body[len(body) // 2 :]


def _one_more_piece(got: Got, leave: Leave, piece: bytes) -> None:
    got.body += piece
    got.pieces += 1
    if got.pieces == leave.after_pieces:
        raise _Left


class _Http1:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: Request) -> None:
        lines = [f"{request.method} {request.path} HTTP/1.1", "host: soak"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        lines += [f"content-length: {len(request.body)}", "", ""]
        first, second = _halves(request.body)
        self._writer.write("\r\n".join(lines).encode() + first)
        if request.leave.mid_body:
            await asyncio.sleep(request.pause_s)
            raise _Left
        if request.pause_s:
            await asyncio.sleep(request.pause_s)
        try:
            self._writer.write(second)
            await self._writer.drain()
        except ConnectionError:
            pass  # it may have been answered before its body was whole: read that

    async def read(self, got: Got, request: Request) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in head[1:] if line)
        got.headers = {name.lower(): value.strip() for name, _, value in fields}
        got.status = int(head[0].split()[1])
        if got.headers.get("transfer-encoding") != "chunked":
            size = int(got.headers.get("content-length", "0"))
            _one_more_piece(got, request.leave, await self._reader.readexactly(size))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            piece = (await self._reader.readexactly(size + 2))[:-2]
            _one_more_piece(got, request.leave, piece)
        await self._reader.readuntil(b"\r\n")

    def cancel(self) -> None:
        """HTTP/1 has no other way than to close."""


class _Http2:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._connection = h2.connection.H2Connection()

    async def ask(self, request: Request) -> None:
        self._connection.initiate_connection()
        if request.reads_after_s:
            self._connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        head = [
            (":method", request.method),
            (":scheme", "http"),
            (":authority", "soak"),
            (":path", request.path),
            *request.headers.items(),
        ]
        self._connection.send_headers(1, head, end_stream=not request.body)
        if not request.body:
            self._flush()
            return
        first, second = _halves(request.body)
        self._connection.send_data(1, first)
        self._flush()
        if request.leave.mid_body:
            await asyncio.sleep(request.pause_s)
            raise _Left
        if request.pause_s:
            await asyncio.sleep(request.pause_s)
        self._connection.send_data(1, second, end_stream=True)
        self._flush()

    async def read(self, got: Got, request: Request) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(request.reads_after_s, self._open_window)
        try:
            while data := await self._reader.read(65536):
                for event in self._connection.receive_data(data):
                    if isinstance(event, h2.events.ResponseReceived):
                        got.headers = {_text(name): _text(value) for name, value in event.headers}
                        got.status = int(got.headers[":status"])
                    elif isinstance(event, h2.events.DataReceived):
                        self._connection.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                        _one_more_piece(got, request.leave, event.data)
                    elif isinstance(event, h2.events.StreamEnded):
                        return
                    elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                        raise ConnectionResetError
                self._flush()
        finally:
            timer.cancel()
        raise ConnectionResetError

    def cancel(self) -> None:
        with suppress(h2.exceptions.StreamClosedError):  # the answer has come whole
            self._connection.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
        self._flush()

    def _open_window(self) -> None:
        for stream in (None, 1):
            self._connection.increment_flow_control_window(_OPEN_WINDOW_BYTES, stream)
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
