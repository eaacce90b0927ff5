"""Streams through real Envoy, split at every byte: passed as they came, and counted right.

Three ways: counted by Envoy as they pass (`ask`); by way of the processor (`guard`, whose servers
are no vLLM, so that it counts them); by the Lua filter for such servers where none guards (`cut`).
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.e2e.client import Answer, Gateway, chat
from tests.e2e.scripted import PAUSE_S, Scripted, served
from tests.gateways import MakeGateway

MODELS = {"ask": "small-7b", "guard": "large-70b", "cut": "large-70b"}
POOLS = {"ask": "small", "guard": "large", "cut": "large"}
TOKENS = {"prompt": 7, "completion": 3, "cached": 2}
AT_ONCE = 16
STALL_S = 1.0


def chunk(text: str, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    one = {"id": "a", "choices": [choice], **more}
    return b"data: " + json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


ROLE, TEXT, LAST = chunk(""), chunk("3 € for Zoë"), chunk(' say "usage":{', "stop")
USAGE = (
    b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
TWO_LINES = b'data: {"id":"a","choices":[{"index":0,\ndata: "delta":{"content":"b"}}]}\n\n'
NAMED = b"event: message\nid: 4\nretry: 100\ndata:" + chunk("x")[6:]
BIG = chunk("x" * 100_000)
DATALESS = b"event: ping\n\n"


class Script(Scripted):
    """A server that sends `before + usage + after` in two pieces, cut where the request says."""

    before: bytes
    usage: bytes = USAGE
    after: bytes = DONE
    encoding = ""
    pause_s = PAUSE_S
    says_length = False
    """Else its pieces are chunks."""
    accept_encoding = False
    """Some model request had that header."""

    @property
    def stream(self) -> bytes:
        return self.before + self.usage + self.after

    async def answer(self, head: str, cuts: list[int], writer: asyncio.StreamWriter) -> None:
        self.accept_encoding |= "accept-encoding" in head
        body = gzip.compress(self.stream, mtime=0) if self.encoding else self.stream
        lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream; charset=utf-8"]
        if self.encoding:
            lines.append(f"content-encoding: {self.encoding}")
        lines.append(
            f"content-length: {len(body)}" if self.says_length else "transfer-encoding: chunked"
        )
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            if piece := body[start:end]:
                writer.write(piece if self.says_length else b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(self.pause_s)
        if not self.says_length:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def by_way(script: Script, make_gateway: MakeGateway) -> Iterator[dict[str, Gateway]]:
    policy = {
        "pools": {"large": {"server": "other"}},
        "routing": {"fallback": {"small": [], "large": []}},
    }
    partial_s, cut = {"stall": f"{STALL_S}s"}, {"on_expiry": "cut"}
    with served(script, MODELS) as urls:
        backends = {POOLS[way]: (urls[way],) for way in ("ask", "guard")}
        both = make_gateway(policy=policy | {"response": partial_s}, backends=backends)
        backends["large"] = (urls["cut"],)
        yield {
            "ask": both,
            "guard": both,
            "cut": make_gateway(policy=policy | {"response": cut}, backends=backends),
        }


@pytest.fixture
def gateway(by_way: dict[str, Gateway], way: str) -> Gateway:
    return by_way[way]


@asynccontextmanager
async def counted(gateway: Gateway, way: str, streams: int) -> AsyncIterator[None]:
    """In here so many streams pass; all of their tokens are counted, and no others."""

    def tokens(kind: str) -> float:
        line = f'forebay_tokens_total{{kind="{kind}",pool="{POOLS[way]}"'
        return gateway.metric(line)

    kinds = [*TOKENS, "completion_estimated"]
    before = {kind: tokens(kind) for kind in kinds}
    yield
    await asyncio.to_thread(gateway.wait_until_accounted)
    gained = {kind: tokens(kind) - before[kind] for kind in kinds}
    wanted = {kind: count * streams for kind, count in TOKENS.items()}
    assert gained == {**wanted, "completion_estimated": 0}


async def ask_all(
    gateway: Gateway, way: str, all_cuts: list[list[int]], *, with_usage: bool = False
) -> list[Answer]:
    gate = asyncio.Semaphore(AT_ONCE)
    options = {"stream_options": {"include_usage": True}} if with_usage else {}

    async def one(cuts: list[int]) -> Answer:
        async with gate:
            body = chat(json.dumps(cuts), model=MODELS[way], stream=True, **options)
            return await gateway.ask(body)

    return await asyncio.gather(*map(one, all_cuts))


async def passes(
    gateway: Gateway, script: Script, way: str, wanted: bytes, all_cuts: list[list[int]]
) -> None:
    async with counted(gateway, way, len(all_cuts)):
        answers = await ask_all(gateway, way, all_cuts)
    for cuts, answer in zip(all_cuts, answers, strict=True):
        assert answer.status == 200
        assert answer.body == wanted, f"cut at {cuts}: {script.stream[: cuts[0]][-40:]!r} |"


STREAMS = {
    "plain": ROLE + TEXT + LAST,
    "comments": COMMENT + ROLE + COMMENT + TEXT + b":\n" + LAST,
    "data on two lines": ROLE + TWO_LINES + LAST,
    "names and ids": ROLE + NAMED + DATALESS + LAST,
}


@pytest.mark.parametrize("way", MODELS)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_split_at_any_byte_passes_and_is_counted(
    gateway: Gateway, script: Script, name: str, newline: bytes, way: str
) -> None:
    script.before, script.usage, script.after = (
        part.replace(b"\n", newline) for part in (STREAMS[name], USAGE, DONE)
    )
    length = len(script.stream)
    # All around the hidden event; of the rest every byte of the plain stream, else every third.
    first = len(script.before) - 4
    cuts = sorted({*range(1, first, 1 if name == "plain" else 3), *range(first, length)})
    await passes(gateway, script, way, script.before + script.after, [[cut] for cut in cuts])


@pytest.mark.parametrize("way", MODELS)
async def test_a_stream_in_single_bytes_passes_and_is_counted(
    gateway: Gateway, script: Script, way: str
) -> None:
    script.before, script.usage, script.after = ROLE, USAGE, DONE
    await passes(gateway, script, way, ROLE + DONE, [[*range(1, len(script.stream))]])


@pytest.mark.parametrize("way", MODELS)
async def test_an_event_above_64_kilobytes_passes_and_is_no_harm_to_the_count(
    gateway: Gateway, script: Script, way: str
) -> None:
    script.before, script.usage, script.after = ROLE + BIG + LAST, USAGE, DONE
    places = [len(ROLE) + 1, 65_536, 70_000, 100_000, len(script.before) - 1, len(script.stream)]
    cuts = [[place] for place in places] + [places[:-1]]
    await passes(gateway, script, way, script.before + DONE, cuts)


@pytest.mark.parametrize("way", MODELS)
async def test_a_usage_in_an_event_above_64_kilobytes_is_not_seen_by_the_native_filter(
    gateway: Gateway, script: Script, way: str
) -> None:
    """It drops such an event unread (max_event_size), and counts on after it."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    script.before, script.usage, script.after = ROLE + chunk("x" * 140_000, usage=usage), b"", LAST
    script.after += DONE
    line = f'forebay_tokens_total{{kind="completion",pool="{POOLS[way]}"'
    before = gateway.metric(line)
    [answer] = await ask_all(gateway, way, [[70_000, 100_000]])
    await asyncio.to_thread(gateway.wait_until_accounted)
    assert answer.body == script.stream
    assert gateway.metric(line) - before == (0 if way == "ask" else 3)


@pytest.mark.parametrize("way", MODELS)
async def test_the_usage_that_was_asked_for_passes(
    gateway: Gateway, script: Script, way: str
) -> None:
    script.before, script.usage, script.after = ROLE + COMMENT + LAST, USAGE, DONE
    all_cuts = [[cut] for cut in range(len(script.before), len(script.stream), 7)]
    async with counted(gateway, way, len(all_cuts)):
        answers = await ask_all(gateway, way, all_cuts, with_usage=True)
    assert {answer.body for answer in answers} == {script.stream}


@pytest.mark.parametrize(
    ("way", "after", "end"),
    [
        ("ask", b"data: [DONE]", b"data: [DONE]"),
        ("ask", b"data: [DONE]\n", b"data: [DONE]\n"),
        ("ask", b"", b""),
        ("cut", b"data: [DONE]", b"data: [DONE]"),
        ("cut", b"", b""),
        ("guard", b"data: [DONE]", DONE),  # the guard mends it
        ("guard", b"data: [DONE]\n", DONE),
        ("guard", b"", DONE),
    ],
)
@pytest.mark.parametrize("says_length", [False, True])
async def test_a_stream_without_its_last_newline_or_done_is_counted(
    gateway: Gateway, script: Script, way: str, after: bytes, end: bytes, says_length: bool
) -> None:
    script.before, script.usage, script.after = ROLE + TEXT + LAST, USAGE, after
    first = len(script.before)
    cuts = [[cut] for cut in range(first, len(script.stream), 5)]
    script.says_length = says_length
    try:
        await passes(gateway, script, way, script.before + end, cuts)
    finally:
        script.says_length = False


@pytest.mark.parametrize("way", MODELS)
async def test_a_compressed_stream_passes_unread(
    gateway: Gateway, script: Script, way: str
) -> None:
    """So nobody knows whether its server has stalled: it is left to end by itself."""
    script.before, script.usage, script.after = ROLE + TEXT + LAST, USAGE, DONE
    script.encoding, script.pause_s = "gzip", STALL_S * 1.2
    try:
        answers = await ask_all(gateway, way, [[cut] for cut in (5, 60, 100)])
    finally:
        script.encoding, script.pause_s = "", PAUSE_S
    for answer in answers:  # the client of the test has unpacked it
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.body == script.stream
    assert not script.accept_encoding, "some client's Accept-Encoding reached a model"
    await asyncio.to_thread(gateway.wait_until_accounted)


@pytest.mark.parametrize("way", ["guard", "cut"])
async def test_an_event_that_is_a_plain_value_passes_and_is_no_harm_to_the_count(
    gateway: Gateway, script: Script, way: str
) -> None:
    """It would crash the native filter."""
    script.before, script.usage, script.after = ROLE + b'data: "x"\n\n' + LAST, USAGE, DONE
    cuts = [[cut] for cut in range(len(ROLE), len(script.before), 7)]
    await passes(gateway, script, way, script.before + DONE, cuts)


@pytest.mark.parametrize("way", ["cut"])
async def test_an_error_event_is_seen_where_the_native_filter_does_not_look(
    gateway: Gateway, script: Script, way: str
) -> None:
    error = b'data: {"error": {"message": "no more", "code": 500}}\n\n'
    script.before, script.usage, script.after = ROLE + error, b"", DONE
    line = 'forebay_endings_total{ending="error",pool="large"'
    before = gateway.metric(line)
    answers = await ask_all(gateway, way, [[], [len(ROLE) + 10]])
    await asyncio.to_thread(gateway.wait_until_accounted)
    assert {answer.body for answer in answers} == {script.stream}
    assert gateway.metric(line) - before == len(answers)
