"""A hosted API as strict as the real ones, behind TLS on loopback: it refuses whatever they would,
and remembers what came. Runs in a thread of its own."""

import asyncio
import json
import ssl
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

HOST, MODEL, KEY = "api.example.com", "gpt-x", "sk-hosted-0123456789abcdef"
KNOWN = {
    *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "n", "seed", "stop", "user", "tools", "metadata", "response_format"),
}


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """One for this DNS name, which signs itself, and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
        ]
        + ["-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, key


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0


@dataclass
class HostedApi:
    """`fault`: `busy` (429), `slow` (answers after `slow_s`), `moved` (302), `broken` (500), `page`
    (HTML, 200), or nothing. `stop` in the end."""

    cert: Path
    key: Path
    fault: str = ""
    slow_s: float = 3.0
    seen: list[Seen] = field(default_factory=list)
    port: int = 0

    def start(self) -> None:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self, started: threading.Event) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", self._answer)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.path_qs, headers, await request.read())
        self.seen.append(seen)
        answer = await self._checked(request, seen)
        seen.status = answer.status
        return answer

    async def _checked(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        if seen.headers["host"] != HOST:
            return web.Response(status=421, text="Misdirected Request")
        if request.path != "/v1/chat/completions":
            return _error(404, f"Invalid URL (POST {request.path})")
        if seen.headers.get("authorization") != f"Bearer {KEY}":
            return _error(401, f"Incorrect API key provided: {seen.headers.get('authorization')}.")
        if self.fault == "busy":
            return _error(429, "Rate limit reached in organization org-123", {"retry-after": "7"})
        if self.fault == "broken":
            return _error(500, "Out of memory on host-7 of organization org-123")
        if self.fault == "moved":
            return web.Response(status=302, text="org-123", headers={"location": "https://x.test/"})
        if self.fault == "page":
            return web.Response(text="<html>Welcome, org-123</html>", content_type="text/html")
        body = json.loads(seen.body)
        if unknown := set(body) - KNOWN:
            return _error(400, f"Unrecognized request argument supplied: {min(unknown)}")
        if body["model"] != MODEL:
            return _error(404, f"The model `{body['model']}` does not exist")
        if self.fault == "slow":
            await asyncio.sleep(self.slow_s)
        if body.get("stream"):
            return await self._stream(request, body)
        message = {"role": "assistant", "content": "Hosted."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        more = {"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1}
        private = {"openai-organization": "org-123", "set-cookie": "a=b"}
        answer = head | {"model": f"{MODEL}-2026-01-01", "choices": [choice]} | more
        return web.json_response(answer, headers=private)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        deltas = [({"role": "assistant", "content": ""}, None), ({"content": "Hosted."}, None)]
        for delta, reason in [*deltas, ({}, "stop")]:
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            await response.write(
                b"data: %b\n\n" % json.dumps(head | {"choices": [choice]}).encode()
            )
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
            last = head | {"choices": [], "usage": usage}
            await response.write(b"data: %b\n\n" % json.dumps(last).encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status, headers=headers)
