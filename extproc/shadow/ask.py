"""One question to a server, within limits of time and size. Never says what was sent or heard."""

from collections.abc import Mapping

import aiohttp

from extproc.openai import CHAT, Said, said

_MOST_ANSWER_BYTES = 256 * 1024
_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


# What a server answers to a question that is wrong itself, or too long for it.
_OF_THE_QUESTION = (400, 413, 422)


class NoAnswer(Exception):
    """The message quotes nothing of question and answer. `by_question`: the server is well."""

    def __init__(self, message: str, *, by_question: bool = False) -> None:
        super().__init__(message)
        self.by_question = by_question


def session() -> aiohttp.ClientSession:
    """For all servers. Redirects are not followed, no cookie is kept."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    body: bytes,
    time_limit_s: float,
    headers: Mapping[str, str] | None = None,
) -> Said:
    """`url`: http://host:port. Raises NoAnswer."""
    try:
        return await _ask(http, url, body, time_limit_s, headers or {})
    except TimeoutError:
        raise NoAnswer(f"no answer within {time_limit_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # The text of aiohttp's own errors may quote what was sent or received.
        raise NoAnswer(type(error).__name__) from None


async def _ask(
    http: aiohttp.ClientSession,
    url: str,
    body: bytes,
    time_limit_s: float,
    headers: Mapping[str, str],
) -> Said:
    async with http.post(
        url + CHAT,
        data=body,
        headers={**_HEADERS, **headers},
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=time_limit_s),
    ) as answer:
        if answer.status != 200:
            by_question = answer.status in _OF_THE_QUESTION
            raise NoAnswer(f"status {answer.status}", by_question=by_question)
        content = bytearray()
        async for piece in answer.content.iter_any():
            content += piece
            if len(content) > _MOST_ANSWER_BYTES:
                raise NoAnswer(f"more than {_MOST_ANSWER_BYTES:,} bytes")
    heard = said(bytes(content))
    if heard is None:
        raise NoAnswer("it is no whole answer in words")
    return heard
