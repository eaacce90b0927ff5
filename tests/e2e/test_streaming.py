"""Streamed bytes through Envoy: nothing changes but a usage chunk that nobody asked for."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web

from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway

TOKEN = b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"\xe2\x82\xac"}}]}\n\n'
TRICK = rb'data: {"choices":[{"delta":{"content":"\"choices\":[],\"usage\":"}}]}' + b"\n\n"
USAGE = b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


class Script:
    """A server that answers with given pieces, each a write of its own."""

    pieces: list[bytes]
    status = 200
    content_type = "text/event-stream"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(status=self.status)
        response.content_type = self.content_type
        await response.prepare(request)
        for piece in self.pieces:
            await response.write(piece)
            await asyncio.sleep(0.02)  # so that Envoy reads it apart from the next
        return response

    @staticmethod
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted"}]})

    @staticmethod
    async def health(_: web.Request) -> web.Response:
        return web.Response()


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def gateway(script: Script, make_gateway: MakeGateway) -> Iterator[Gateway]:
    app = web.Application()
    app.router.add_get("/v1/models", script.models)
    app.router.add_get("/health", script.health)
    app.router.add_post("/v1/chat/completions", script.answer)
    with _served(app) as url:
        yield make_gateway(backends={"small": (url,), "large": (url,)})


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
async def test_the_usage_event_is_hidden_wherever_it_is_split(
    gateway: Gateway, script: Script, newline: bytes
) -> None:
    token, trick, usage, done = (e.replace(b"\n", newline) for e in (TOKEN, TRICK, USAGE, DONE))
    whole = token + trick + token + usage + done
    start = len(token + trick + token)
    end = start + len(usage)
    for cut in (
        *range(start - 5, start + 20),
        *range(start + 20, end, 9),
        *range(end - 5, end + 5),
    ):
        script.pieces = [whole[:cut], whole[cut:]]
        answer = await gateway.ask(chat(stream=True))
        assert answer.body == token + trick + token + done, f"split at {cut - start}"


async def test_the_usage_event_is_hidden_when_it_comes_byte_by_byte(
    gateway: Gateway, script: Script
) -> None:
    script.pieces = [TOKEN, *(bytes([byte]) for byte in USAGE), DONE]
    answer = await gateway.ask(chat(stream=True))
    assert answer.body == TOKEN + DONE


async def test_a_stream_that_asked_for_usage_passes_byte_for_byte(
    gateway: Gateway, script: Script
) -> None:
    script.pieces = [TOKEN[:9], TOKEN[9:] + b": comment\r\n\r\n" + USAGE[:20], USAGE[20:] + DONE]
    answer = await gateway.ask(chat(stream=True, stream_options={"include_usage": True}))
    assert answer.body == b"".join(script.pieces)


@pytest.mark.parametrize("tail", [b"data: [DONE]", TOKEN[:30], b": keep-alive\n\n", b""])
async def test_a_stream_that_ends_anyhow_loses_no_byte(
    gateway: Gateway, script: Script, tail: bytes
) -> None:
    script.pieces = [TOKEN, b": keep-alive\n\n", USAGE, TOKEN[:11], TOKEN[11:], tail]
    answer = await gateway.ask(chat(stream=True))
    assert answer.body == TOKEN + b": keep-alive\n\n" + TOKEN + tail


async def test_an_event_above_64_kilobytes_passes(gateway: Gateway, script: Script) -> None:
    big = b'data: {"choices":[{"delta":{"content":"' + b"x" * 100_000 + b'"}}]}\n\n'
    script.pieces = [big[:50_000], big[50_000:], USAGE, DONE]
    answer = await gateway.ask(chat(stream=True))
    assert answer.body == big + DONE


async def test_a_servers_error_page_becomes_json(gateway: Gateway, script: Script) -> None:
    script.status, script.content_type = 502, "text/html"
    script.pieces = [b"<html>", b"Bad Gateway</html>"]
    try:
        answer = await gateway.ask(chat())
    finally:
        script.status, script.content_type = 200, "text/event-stream"
    assert (answer.status, answer.code) == (502, "upstream_error")
    assert json.loads(answer.body)


class _served:
    """The app on a free port, in a thread of its own, while the block runs."""

    def __init__(self, app: web.Application) -> None:
        self._app = app

    def __enter__(self) -> str:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            runner = web.AppRunner(self._app)
            self._loop.run_until_complete(runner.setup())
            site = web.TCPSite(runner, "127.0.0.1", 0)
            self._loop.run_until_complete(site.start())
            self._port = runner.addresses[0][1]
            started.set()
            self._loop.run_forever()
            self._loop.run_until_complete(runner.cleanup())

        self._thread = threading.Thread(target=run)
        self._thread.start()
        started.wait()
        return f"http://127.0.0.1:{self._port}"

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
