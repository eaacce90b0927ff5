"""The upstream of the benchmarks: a model server that answers a constant, as cheaply as Python can.

A process of its own: `python -m extproc.bench.upstream --port P`. Never anything that serves users.
"""

import argparse
import asyncio
import json
import re
from typing import cast

import uvloop

MODEL = "bench-model"
ANSWER_TEXT = "Yes: air scatters blue light more than red light, so the sky looks blue by day."
_USAGE = {"prompt_tokens": 16, "completion_tokens": 19, "total_tokens": 35}

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def _json(document: object) -> bytes:
    body = json.dumps(document, separators=(",", ":")).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


_ANSWER = _json(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER_TEXT},
                "finish_reason": "stop",
            }
        ],
        "usage": _USAGE,
    }
)
_MODELS = _json({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
_HEALTH = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _event(choices: list[object], **more: object) -> bytes:
    chunk = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": MODEL,
        "choices": choices,
        **more,
    }
    return _piece(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_TOKEN = _event([{"index": 0, "delta": {"content": " token"}, "finish_reason": None}])
_LAST = _event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
_USAGE_EVENT = _event([], usage=_USAGE)
_DONE = _piece(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    """One request at a time, as Envoy sends them over HTTP/1.1."""

    def __init__(self, chunk_s: float) -> None:
        self._chunk_s = chunk_s
        self._loop = asyncio.get_running_loop()
        self._read = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._read += data
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._read, 0, end)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._read) < whole:
            return
        head, body = bytes(self._read[:end]), bytes(self._read[end + 4 : whole])
        del self._read[:whole]
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST ") and b"/chat/completions " in head:
            if b'"stream":true' in body:
                self._begin_stream(json.loads(body))
            else:
                self._transport.write(_ANSWER)
        elif head.startswith(b"GET /health "):
            self._transport.write(_HEALTH)
        elif head.startswith(b"GET /v1/models "):
            self._transport.write(_MODELS)
        else:
            self._transport.write(_NOT_FOUND)

    def _begin_stream(self, request: dict[str, object]) -> None:
        """`max_tokens` events, one write each, `chunk_s` apart; then the end in one more write."""
        left = request["max_tokens"]
        options = request.get("stream_options")
        usage = isinstance(options, dict) and options.get("include_usage") is True
        assert isinstance(left, int)
        self._transport.write(_STREAM_HEAD)
        self._timer = self._loop.call_later(self._chunk_s, self._go_on, left, usage)

    def _go_on(self, left: int, usage: bool) -> None:
        if left > 0:
            self._transport.write(_TOKEN)
            self._timer = self._loop.call_later(self._chunk_s, self._go_on, left - 1, usage)
        else:
            self._transport.write(_LAST + (_USAGE_EVENT if usage else b"") + _DONE)


async def _serve(port: int, chunk_ms: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(chunk_ms / 1000), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--chunk-ms", type=float, default=1.0, help="between two chunks")
    given = options.parse_args()
    uvloop.run(_serve(given.port, given.chunk_ms))


if __name__ == "__main__":
    main()
