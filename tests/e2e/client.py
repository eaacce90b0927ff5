"""What the tests do to a running stack: ask, look at the servers' and the processor's books."""

import asyncio
import base64
import json
import re
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai

from extproc.up import Stack

CHAT = "/v1/chat/completions"


def chat(text: str = "Tell me a story", **more: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **more}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error code, after checking OpenAI's shape."""
        assert self.headers["content-type"] == "application/json", self
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"], error
        return error["code"]

    @property
    def events(self) -> list[Any]:
        """The events of a stream that ended with [DONE]."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == "", "the stream does not end with a blank line"
        assert blocks.pop() == "data: [DONE]"
        return [json.loads(block.removeprefix("data: ")) for block in blocks]


class Gateway:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.url = stack.config.url
        self.key = stack.config.demo_key
        self.headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {self.key}",
        }

    # --- asking --------------------------------------------------------------------------------

    def client(self, **more: Any) -> openai.OpenAI:
        more = {"api_key": self.key, "max_retries": 0} | more
        return openai.OpenAI(base_url=f"{self.url}/v1", **more)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    async def ask(
        self,
        body: object = None,
        path: str = CHAT,
        headers: dict[str, str] | None = None,
        timeout_s: float = 30,
    ) -> Answer:
        """POST a JSON value, or bytes as they are; the whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body or chat()).encode()
        limit = aiohttp.ClientTimeout(total=timeout_s)
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(
                self.url + path,
                data=data,
                headers=self.headers | (headers or {}),
            ) as answer,
        ):
            got = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, got, await answer.read())

    def post(self, more: dict[str, Any]) -> int:
        """The status of one answer, without an event loop."""
        return asyncio.run(self.ask(chat(**more))).status

    async def ask_many(self, count: int, body: object = None) -> list[Answer]:
        return await asyncio.gather(*(self.ask(body) for _ in range(count)))

    def head(self, *lines: str, method: str = "POST", path: str = CHAT) -> bytes:
        """The head of a plain request, with `lines` as further headers."""
        always = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {self.key}"]
        return "\r\n".join([*always, *lines, "", ""]).encode()

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A plain connection to the gateway; closed at the end."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.close()

    async def answer_to(self, request: bytes) -> tuple[bytes, bytes]:
        """Head and body of the answer to these bytes on a connection of their own. It does not wait
        for Envoy to close, which takes a second where a request was not read to its end."""
        async with asyncio.timeout(5), self.raw() as (reader, writer):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head)
            return head, await (reader.readexactly(int(length[1])) if length else reader.read())

    # --- the servers' side ---------------------------------------------------------------------

    def received(self, pool: str) -> list[dict[str, Any]]:
        """The model requests that reached a pool's server, with `body` decoded."""
        requests = self._json(f"{self.stack.config.backend_urls[pool]}/sim/requests")["requests"]
        for request in requests:
            request["body"] = base64.b64decode(request["body_base64"])
        return requests

    def set_faults(self, pool: str, faults: dict[str, Any]) -> None:
        self.get(
            f"{self.stack.config.backend_urls[pool]}/sim/faults",
            "POST",
            json.dumps(faults).encode(),
        )

    def running(self, pool: str) -> float:
        """Requests that the server itself says it is working on or has waiting."""
        text = self.get(f"{self.stack.config.backend_urls[pool]}/metrics").decode()
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))
        )

    # --- the processor's side ------------------------------------------------------------------

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Of each pool."""
        return self._json(f"{self.stack.config.admin_url}/status")["pools"]

    def status(self, pool: str) -> dict[str, Any]:
        return self.statuses()[pool]

    def metric(self, line_start: str) -> float:
        """The sum of the samples whose line begins so; 0 when there is none."""
        [value] = self.metrics(line_start)
        return value

    def metrics(self, *line_starts: str) -> list[float]:
        """Several of one moment."""
        lines = self.get(f"{self.stack.config.admin_url}/metrics").decode().splitlines()
        return [
            sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))
            for start in line_starts
        ]

    def wait_until_accounted(self) -> None:
        """Until Envoy's log has told of every admitted exchange, which end a little after their
        clients have their answers."""
        self.wait_until_idle()

        def all_told() -> bool:
            admitted = 'forebay_decisions_total{decision="admitted"'
            answers, exchanges = self.metrics("forebay_answers_total", admitted)
            return answers == exchanges

        self.until(all_told, "the log does not tell of every admitted exchange")

    def reset(self) -> None:
        self.wait_until_idle()
        for pool, url in self.stack.config.backend_urls.items():
            self.set_faults(pool, {})
            self.get(f"{url}/sim/requests", "DELETE")

    def wait_until_idle(self) -> None:
        def idle() -> bool:
            statuses = self.statuses()
            return not any(
                statuses[pool][of]
                for pool in self.stack.config.backend_urls
                for of in ("in_flight", "queue_depth", "batch_waiting")
            )

        self.until(idle, "a slot or a place in the queue is still taken")

    @staticmethod
    def until(condition: Any, why: str, limit_s: float = 5.0) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, why
            time.sleep(0.02)

    @staticmethod
    async def until_async(condition: Any, why: str, limit_s: float = 5.0) -> None:
        """As `until`, while the test's other tasks go on."""
        end = time.monotonic() + limit_s
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < end, why
            await asyncio.sleep(0.02)

    def _json(self, url: str) -> Any:
        return json.loads(self.get(url))

    @staticmethod
    def get(url: str, method: str = "GET", data: bytes | None = None) -> bytes:
        request = urllib.request.Request(url, data=data, method=method)
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read()
