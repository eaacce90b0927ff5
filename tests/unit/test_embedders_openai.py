"""The endpoint as an embedder: what it sends, what it takes, what it never says."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from extproc.credential import Credential
from extproc.embedders import EmbedderUnavailable
from extproc.embedders.openai_endpoint import OpenAIEmbedder

SECRET = "sk-very-secret-0123"
TEXT = "Which text is this, that nobody may quote?"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def vector(*values: object) -> Answer:
    content = json.dumps({"data": [{"index": 0, "embedding": values}]})

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=content)

    return answer


def raw(content: str, status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=content, status=status)

    return answer


@asynccontextmanager
async def embedder(answer: Answer, **options: Any) -> AsyncIterator[OpenAIEmbedder]:
    app = web.Application()
    app.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    options = {"credential": Credential(SECRET), "time_limit_s": 5.0} | options
    asked = OpenAIEmbedder(f"http://127.0.0.1:{port}", "some-model", **options)
    asked.start()
    try:
        yield asked
    finally:
        await asked.close()
        await runner.cleanup()


async def unavailable(asked: OpenAIEmbedder, text: str = TEXT) -> EmbedderUnavailable:
    with pytest.raises(EmbedderUnavailable) as caught:
        await asked.embed(text)
    return caught.value


async def test_a_vector_comes_back_with_unit_length() -> None:
    got = list[Any]()

    async def answer(request: web.Request) -> web.StreamResponse:
        got.append((request.headers["Authorization"], await request.json()))
        return web.json_response({"data": [{"index": 0, "embedding": [3.0, 0, -4.0]}]})

    async with embedder(answer) as asked:
        assert (asked.model, asked.dimensions) == ("", 0)
        result = await asked.embed(TEXT)
        assert asked.dimensions == 3
        assert asked.model.startswith("some-model@http://")
    assert result.dtype == np.float32
    assert result.tolist() == pytest.approx([0.6, 0, -0.8])
    [(authorization, body)] = got
    assert authorization == f"Bearer {SECRET}"
    assert body == {"model": "some-model", "input": [TEXT], "encoding_format": "float"}


@pytest.mark.parametrize(
    "answer",
    [
        vector(),
        vector(0, 0, 0),
        vector(1, None, 2),
        vector(1, True, 2),
        vector(1, "2", 3),
        vector(1e308, 1e308, 1e308),
        vector([1.0], [2.0], [3.0]),
        raw('{"data": [{"embedding": [NaN, 1, 2]}]}'),
        raw('{"data": [{"embedding": [Infinity, 1, 2]}]}'),
        raw('{"data": []}'),
        raw('{"data": [{"embedding": [1, 2, 3]}, {"embedding": [1, 2, 3]}]}'),
        raw('{"data": {"embedding": [1, 2, 3]}}'),
        raw("[]"),
        raw(TEXT),
        raw(TEXT, status=500),
        raw(TEXT, status=401),
        raw("x" * 2**21),
        vector(1, 2, 3, 4),
    ],
)
async def test_an_answer_that_is_no_vector_of_its_dimensions_is_none(answer: Answer) -> None:
    async with embedder(answer, dimensions=3) as asked:
        error = await unavailable(asked)
    assert error.why == "failed"
    assert TEXT not in str(error)


async def test_the_dimensions_of_the_first_answer_bind_the_others() -> None:
    answers = iter([[1, 2, 3], [1, 2]])

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"embedding": next(answers)}]})

    async with embedder(answer) as asked:
        await asked.embed(TEXT)
        assert "2 dimensions, not 3" in str(await unavailable(asked))


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_text_that_the_server_refuses_says_nothing_about_the_server(status: int) -> None:
    async with embedder(raw("too long", status)) as asked:
        for _ in range(5):  # it is asked again each time
            assert (await unavailable(asked)).why == "too_long"


async def test_a_slow_answer_is_not_waited_for() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return web.Response()

    async with embedder(answer, time_limit_s=0.1) as asked:
        async with asyncio.timeout(0.4):
            assert (await unavailable(asked)).why == "time_limit"


async def test_so_many_calls_at_once_and_one_more_is_refused_at_once() -> None:
    go = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await go.wait()
        return web.json_response({"data": [{"embedding": [1.0]}]})

    async with embedder(answer, most_in_flight=2) as asked:
        under_way = [asyncio.create_task(asked.embed(TEXT)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await unavailable(asked)).why == "busy"
        under_way[0].cancel()  # a caller that leaves gives its place back
        await asyncio.gather(under_way[0], return_exceptions=True)
        third = asyncio.create_task(asked.embed(TEXT))
        await asyncio.sleep(0.05)
        go.set()
        await asyncio.gather(under_way[1], third)


async def test_a_dead_server_costs_no_time_after_three_failures_and_is_asked_again() -> None:
    asked_at, dead = list[float](), True

    async def answer(request: web.Request) -> web.StreamResponse:
        asked_at.append(asyncio.get_running_loop().time())
        if dead:
            return web.Response(status=503)
        return web.json_response({"data": [{"embedding": [1.0]}]})

    async with embedder(answer) as asked:
        for _ in range(10):
            assert (await unavailable(asked)).why == "failed"
        assert len(asked_at) == 3
        dead = False
        await asyncio.sleep(1.05)
        assert (await asked.embed(TEXT)).tolist() == [1.0]


async def test_a_redirect_takes_neither_text_nor_credential_elsewhere() -> None:
    elsewhere = list[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        elsewhere.append(request.path_qs)
        raise web.HTTPTemporaryRedirect("/v1/embeddings?again=1")

    async with embedder(answer) as asked:
        assert (await unavailable(asked)).why == "failed"
    assert elsewhere == ["/v1/embeddings"]


async def test_neither_credential_nor_text_is_ever_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text=request.headers["Authorization"] + TEXT)

    async with embedder(answer) as asked:
        errors = [await unavailable(asked) for _ in range(5)]
        said = "".join(map(repr, errors)) + caplog.text + repr(vars(asked)["_url"])
    refused = OpenAIEmbedder("http://127.0.0.1:9", "m", credential=Credential(SECRET))
    refused.start()
    said += repr(await unavailable(refused))
    await refused.close()
    assert SECRET not in said
    assert TEXT not in said
    assert SECRET not in repr(Credential(SECRET))


async def test_closed_is_closed() -> None:
    asked = OpenAIEmbedder("http://127.0.0.1:9", "m")
    assert (await unavailable(asked)).why == "closed"


def test_a_credential_is_one_clean_line(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"  {SECRET}\n")
    assert Credential.from_file(file).header() == {"Authorization": f"Bearer {SECRET}"}
    there = Credential.from_environment("KEY", {"KEY": SECRET})
    assert there.header() == {"Authorization": f"Bearer {SECRET}"}
    for bad in ("", f"{SECRET}\r\nX-Other: 1", f"{SECRET}é"):
        file.write_text(bad)
        with pytest.raises(ValueError, match="one line of visible ASCII") as caught:
            Credential.from_file(file)
        assert SECRET not in str(caught.value)
        with pytest.raises(ValueError, match="one line of visible ASCII"):
            Credential.from_environment("KEY", {"KEY": bad})
    with pytest.raises(ValueError, match="is not set"):
        Credential.from_environment("KEY", {})
    with pytest.raises(ValueError, match="cannot be read"):
        Credential.from_file(tmp_path / "none")
