"""Streams from a server, with the moment of each token: what all measuring is made of.

Prompts are random words from their first one on, so that no prefix cache helps. Must never judge
what is measured.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

_WORDS = ("time", "year", "people", "way", "day", "thing", "life", "child", "world", "school")
_SILENCE_S = 60.0
_FEW = 8
_LONGEST_LIST_BYTES = 1024 * 1024
# What reading an answer raises that is not of OpenAI's shape.
_OTHER_SHAPE = (AttributeError, KeyError, TypeError, ValueError)


class CalibrationError(Exception):
    """The server cannot be measured; the message says why and what to do."""


@dataclass(frozen=True)
class Answer:
    """One streamed answer. Times in seconds; the counts are the server's own.

    started_at   the request was sent
    chunks_at    each chunk that brought tokens; one chunk is one token unless the server joins some
    """

    started_at: float
    chunks_at: Sequence[float]
    prompt_tokens: int
    tokens: int

    @property
    def ttft_s(self) -> float:
        return self.chunks_at[0] - self.started_at

    @property
    def e2e_s(self) -> float:
        return self.chunks_at[-1] - self.started_at

    @property
    def tpot_s(self) -> float:
        return (self.chunks_at[-1] - self.chunks_at[0]) / (self.tokens - 1)


class Server:
    """A server at `url` (with or without /v1), as a block: `async with Server(...) as server`.

    model    None: the first one that it names
    api_key  sent as a Bearer token

    Raises CalibrationError for a URL that is none.
    """

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise CalibrationError(f"{url}: is no URL; write http://{url}")
        self.base = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self.max_model_len: int | None = None
        headers = {"Cache-Control": "no-store"}  # a gateway's cache would answer instead
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        # No limit for the whole of an answer: a slow server is not a failed one.
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENCE_S)
        self._http = aiohttp.ClientSession(headers=headers, timeout=limits)
        self._random = random.Random(time.time_ns())

    async def __aenter__(self) -> "Server":
        try:
            await self._look()
        except BaseException:
            await self._http.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.close()

    async def _look(self) -> None:
        """What models it has, and how long a context."""
        listed = await self._read("/v1/models")
        try:
            limits = {one["id"]: one.get("max_model_len") for one in listed["data"]}
            names = [name for name in limits if isinstance(name, str)]
        except _OTHER_SHAPE as error:
            raise CalibrationError(
                f"{self.base}/v1/models is not OpenAI's list of models; is the URL right?"
            ) from error
        self.model = self.model or next(iter(names), None)
        if self.model not in names:
            raise CalibrationError(
                f"{self.base} has no model {self.model!r}; it names {names}: choose with --model"
            )
        limit = limits[self.model]
        self.max_model_len = limit if isinstance(limit, int) else None

    async def _read(self, path: str) -> Any:
        try:
            async with self._http.get(self.base + path) as response:
                body = b""
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > _LONGEST_LIST_BYTES:
                        raise ValueError("an endless answer")
                _check(response, body, self.base + path)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise CalibrationError(
                f"{self.base}: no answer ({error or type(error).__name__}); is the URL right, and "
                "does the server run?"
            ) from error
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise CalibrationError(f"{self.base}{path}: answers no JSON") from error

    def prompt(self, words: int) -> str:
        """So many random words, never the same twice; about one token each."""
        opening = " ".join(str(self._random.randrange(10)) for _ in range(8))
        return " ".join((opening, *self._random.choices(_WORDS, k=max(0, words - 8))))

    async def ask(self, *, words: int, tokens: int) -> Answer:
        """One streamed answer of exactly so many tokens. Raises CalibrationError."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt(words)}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"{self.base}/v1/chat/completions"
        started_at = time.perf_counter()
        chunks_at: list[float] = []
        usage: dict[str, Any] = {}
        try:
            async with self._http.post(url, json=body) as response:
                if response.status != 200:
                    _check(response, await response.read(), url)
                async for line in response.content:
                    now = time.perf_counter()
                    if not line.startswith(b"data: {"):
                        continue
                    event = orjson.loads(line[6:])
                    if "error" in event:
                        raise CalibrationError(f"{url}: the stream broke off: {event['error']}")
                    if any(_brings_a_token(choice) for choice in event.get("choices", ())):
                        chunks_at.append(now)
                    if len(chunks_at) > tokens + _FEW:
                        break  # it does not honour max_tokens
                    usage = event.get("usage") or usage
            given, prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CalibrationError(
                f"{url}: {error or 'silence'} (limit {_SILENCE_S:g} s between two tokens); see the "
                "server's log, or calibrate while nobody else uses it"
            ) from error
        except _OTHER_SHAPE as error:
            raise CalibrationError(
                f"{url}: the stream is not of OpenAI's shape ({type(error).__name__})"
            ) from error
        # A server that is busy joins some tokens in one chunk, but not nearly all.
        enough = 2 if tokens >= _FEW else 1
        if given != tokens or len(chunks_at) < enough or not isinstance(prompt_tokens, int):
            raise CalibrationError(
                f"{url}: {given} tokens in {len(chunks_at)} chunks instead of {tokens}: it must "
                "stream, honour max_tokens and ignore_eos, and report usage (vLLM does)"
            )
        return Answer(started_at, chunks_at, prompt_tokens, tokens)


def _brings_a_token(choice: dict[str, Any]) -> bool:
    """Not the role's chunk. A token may have no text of its own (half a character)."""
    delta = choice.get("delta") or {}
    return "role" not in delta


def _check(response: aiohttp.ClientResponse, body: bytes, url: str) -> None:
    if response.status == 200:
        return
    hint = {
        401: "give its key with --api-key",
        403: "this key may not use it",
        404: "is that the base URL of an OpenAI-compatible server?",
        429: "it sheds load: calibrate while nobody else uses it, or past the gateway",
    }.get(response.status, "see the server's log")
    said = body[:200].decode(errors="replace")
    raise CalibrationError(f"{url}: status {response.status}, {said!r}; {hint}")


async def at_once(server: Server, streams: int, *, words: int, tokens: int) -> list[Answer]:
    """So many answers, asked for at the same moment."""
    asking = [server.ask(words=words, tokens=tokens) for _ in range(streams)]
    return list(await asyncio.gather(*asking))


def step_s(answers: Sequence[Answer]) -> float | None:
    """The mean time between two tokens of one answer, over the time in which all of them decode:
    from the last one's first token to the first one's last. None if there is no such time."""
    begin = max(answer.chunks_at[0] for answer in answers)
    end = min(answer.chunks_at[-1] for answer in answers)
    steps: list[float] = []
    for answer in answers:
        inside = [at for at in answer.chunks_at if begin <= at <= end]
        if len(inside) > 1:
            tokens_per_chunk = (answer.tokens - 1) / (len(answer.chunks_at) - 1)
            steps.append((inside[-1] - inside[0]) / (len(inside) - 1) / tokens_per_chunk)
    return statistics.mean(steps) if steps else None


async def measure(
    url: str,
    streams: int,
    *,
    model: str | None = None,
    api_key: str | None = None,
    words: int = 32,
    tokens: int = 64,
    rounds: int = 3,
) -> tuple[float, float]:
    """(tpot_s, tokens_per_s) of a server under `streams` concurrent streams, each of which asks
    `rounds` times, one answer after the other without a pause.

    Both come from medians over all answers, so that a machine that stumbles for a moment does not
    decide: tokens_per_s = streams * tokens / an answer's whole time (Little's law; a stream is
    never idle). Raises CalibrationError.
    """
    answers: list[Answer] = []

    async def one_after_the_other(server: Server) -> None:
        for _ in range(rounds):
            answers.append(await server.ask(words=words, tokens=tokens))

    async with Server(url, model=model, api_key=api_key) as server:
        await server.ask(words=words, tokens=_FEW)  # the first answer of a server is slow
        await asyncio.gather(*(one_after_the_other(server) for _ in range(streams)))
    tpot_s = statistics.median(answer.tpot_s for answer in answers)
    return tpot_s, streams * tokens / statistics.median(answer.e2e_s for answer in answers)
