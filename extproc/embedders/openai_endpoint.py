"""Vectors from a server that speaks OpenAI's POST /v1/embeddings: vLLM, a hosted API, others.

Every call has a time limit and there are only so many at once. No error quotes what the server
said, which may quote the text, nor the credential. Redirects are not followed: they would take both
elsewhere.
"""

import asyncio
import logging
from typing import Any, cast

import aiohttp
import orjson

from extproc.credential import Credential
from extproc.embedders.protocol import EmbedderUnavailable, Vector, unit_vector

_log = logging.getLogger(__name__)

MOST_CHARACTERS = 32 * 1024
_MOST_ANSWER_BYTES = 1024 * 1024  # 4,096 numbers of 20 digits take a tenth of it
_FAILURES_IN_A_ROW = 3
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
# What a server says of a text that is longer than its model: vLLM and OpenAI 400, others 413, 422.
_REFUSALS = frozenset((400, 413, 422))


class OpenAIEmbedder:
    """All state: `_in_flight`, calls that are under way; `_failures`, how many in a row have
    failed; `_paused_until`, before when the server is not asked."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        credential: Credential | None = None,
        dimensions: int | None = None,
        time_limit_s: float = 0.5,
        most_in_flight: int = 8,
    ) -> None:
        """`url`: http://host:port, before /v1/embeddings. `model`: as the server calls it.
        `dimensions`: what an answer must have; None: what the first answer has."""
        self._url = url.rstrip("/") + "/v1/embeddings"
        self._model = model
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if credential is not None:
            self._headers |= credential.header()
        self._dimensions = dimensions
        self._time_limit_s = time_limit_s
        self._most_in_flight = most_in_flight
        self._session: aiohttp.ClientSession | None = None
        self._in_flight = 0
        self._failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until = 0.0

    @property
    def model(self) -> str:
        return f"{self._model}@{self._url}" if self._dimensions else ""

    @property
    def dimensions(self) -> int:
        return self._dimensions or 0

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most_in_flight),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._time_limit_s),
        )

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def embed(self, text: str) -> Vector:
        if self._session is None:
            raise EmbedderUnavailable("closed", "the embedder is not started, or closed")
        if len(text) > MOST_CHARACTERS:
            raise EmbedderUnavailable(
                "too_long", f"{len(text):,} characters; at most {MOST_CHARACTERS:,} are sent"
            )
        if self._in_flight >= self._most_in_flight:
            raise EmbedderUnavailable("busy", f"{self._in_flight} calls are under way")
        if asyncio.get_running_loop().time() < self._paused_until:
            raise EmbedderUnavailable("failed", f"{self._url} fails; it is not asked for a while")
        self._in_flight += 1
        try:
            vector = await self._ask(self._session, text)
        except TimeoutError:
            self._has_failed(message := f"no answer within {self._time_limit_s:g} s")
            raise EmbedderUnavailable("time_limit", f"{self._url}: {message}") from None
        except _TooLong as error:
            raise EmbedderUnavailable("too_long", f"{self._url}: {error}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # The text of aiohttp's own errors may quote what was sent or received.
            message = str(error) if isinstance(error, _BadAnswer) else type(error).__name__
            self._has_failed(message)
            raise EmbedderUnavailable("failed", f"{self._url}: {message}") from None
        finally:
            self._in_flight -= 1
        self._failures, self._pause_s = 0, _FIRST_PAUSE_S
        return vector

    async def _ask(self, session: aiohttp.ClientSession, text: str) -> Vector:
        body = orjson.dumps({"model": self._model, "input": [text], "encoding_format": "float"})
        async with session.post(
            self._url, data=body, headers=self._headers, allow_redirects=False
        ) as answer:
            if answer.status in _REFUSALS:
                raise _TooLong(f"status {answer.status}; is the text too long for its model?")
            if answer.status != 200:
                raise _BadAnswer(f"status {answer.status}")
            content = bytearray()
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > _MOST_ANSWER_BYTES:
                    raise _BadAnswer(f"more than {_MOST_ANSWER_BYTES:,} bytes")
        vector = _read(bytes(content))
        if self._dimensions is None:
            self._dimensions = len(vector)
        elif len(vector) != self._dimensions:
            raise _BadAnswer(f"{len(vector)} dimensions, not {self._dimensions}")
        return vector

    def _has_failed(self, message: str) -> None:
        """After some failures in a row the server is left alone, each time for longer: a dead one
        must not cost every request its time limit."""
        self._failures += 1
        if self._failures < _FAILURES_IN_A_ROW:
            return
        _log.warning("embedder %s: %s; left alone for %g s", self._url, message, self._pause_s)
        self._paused_until = asyncio.get_running_loop().time() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._failures = _FAILURES_IN_A_ROW - 1  # one more try, not three


class _BadAnswer(ValueError):
    """The message quotes nothing of the answer."""


class _TooLong(Exception):
    """The server refuses this text, and lives."""


def _read(content: bytes) -> Vector:
    """The one vector of an answer."""
    try:
        answer = cast(dict[str, Any], orjson.loads(content))
        [item] = cast(list[dict[str, Any]], answer["data"])
        values = cast(list[object], item["embedding"])
        if not values or any(type(value) not in (int, float) for value in values):
            raise ValueError
        return unit_vector(cast(list[float], values))
    except (ValueError, KeyError, TypeError, OverflowError):
        raise _BadAnswer("its answer is not one embedding of finite numbers") from None
