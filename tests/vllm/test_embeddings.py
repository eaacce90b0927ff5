"""Vectors from a real vLLM: the same as those of the ONNX model, and what it says when it has none.

Asked straight, without the gateway: an embedder is the gateway's own client.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from extproc.embedders import EmbedderUnavailable
from extproc.embedders.onnx import ModelFiles
from extproc.embedders.onnx_worker import OnnxModel
from extproc.embedders.openai_endpoint import OpenAIEmbedder
from tests.vllm.servers import Server

TEXTS = (
    "How do I boil an egg?",
    "What is the best way to boil eggs?",
    "Who won the 1998 World Cup?",
    "Écris un poème sur l'automne.",
    "word " * 200,
)


def asking(server: Server, **options: Any) -> OpenAIEmbedder:
    asked = OpenAIEmbedder(server.url, **{"model": "minilm", "time_limit_s": 10.0} | options)
    asked.start()
    return asked


@pytest.fixture
async def asked(embedder: Server) -> AsyncIterator[OpenAIEmbedder]:
    asked = asking(embedder)
    yield asked
    await asked.close()


async def why(asked: OpenAIEmbedder, text: str) -> str:
    with pytest.raises(EmbedderUnavailable) as caught:
        await asked.embed(text)
    return caught.value.why


async def test_its_vectors_are_those_of_the_packaged_model(asked: OpenAIEmbedder) -> None:
    local = OnnxModel(*ModelFiles.minilm())
    for text in TEXTS:
        vector = await asked.embed(text)
        assert vector.shape == (384,)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        assert vector @ local.embed(text) > 0.99, text
    assert asked.dimensions == 384


async def test_a_text_that_is_too_long_is_refused_and_the_next_one_is_not(
    asked: OpenAIEmbedder,
) -> None:
    for _ in range(4):
        assert await why(asked, "word " * 600) == "too_long"
    await asked.embed(TEXTS[0])


async def test_many_at_once_come_back_as_they_were_asked(asked: OpenAIEmbedder) -> None:
    alone = [await asked.embed(f"How do I boil {n} eggs?") for n in range(8)]
    together = await asyncio.gather(
        *(asked.embed(f"How do I boil {n} eggs?") for n in range(8)),
    )
    for one, other in zip(alone, together, strict=True):
        assert one @ other > 0.9999


async def test_a_model_that_it_does_not_serve_is_a_failure(embedder: Server) -> None:
    asked = asking(embedder, model="another")
    assert await why(asked, TEXTS[0]) == "failed"
    await asked.close()


async def test_a_server_that_dies_is_a_failure_at_once(
    embedder: Server, asked: OpenAIEmbedder
) -> None:
    await asked.embed(TEXTS[0])
    embedder.kill()
    async with asyncio.timeout(2):
        assert await why(asked, TEXTS[0]) == "failed"
