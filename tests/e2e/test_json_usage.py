"""The usage of JSON answers through real Envoy: counted however it is written and cut, the answer
passed as it came, and Envoy's thread not held up by it. In answers of vLLM and of other servers."""

import asyncio
import gzip
import http.client
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from extproc.bench.processes import cpu_s
from tests.e2e.client import Answer, Gateway, chat
from tests.e2e.scripted import PAUSE_S, Scripted, served
from tests.gateways import MakeGateway

MODELS = {"small": "small-7b", "large": "large-70b"}  # the second pool's server is no vLLM
AT_ONCE = 16

CHOICES = (
    '"choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}]'
)
USAGE = (
    '"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3,'
    '"prompt_tokens_details":{"cached_tokens":2}}'
)
ALL = {"prompt": 7, "completion": 3, "cached": 2}
NONE = {"prompt": 0, "completion": 0, "cached": 0}
# What a model may be asked to write: a usage of its own, once more as the arguments of a tool.
QUOTED = '{"usage": {"prompt_tokens": 900, "completion_tokens": 900, "cached_tokens": 900}}'
CALLS = json.dumps({"tool_calls": [{"function": {"name": "f", "arguments": QUOTED}}]})


def answer(*members: str, content: str = "Hi.") -> bytes:
    """A completion with these members behind or before its choices."""
    parts = [CHOICES % json.dumps(content) if part == "choices" else part for part in members]
    return ('{"id":"a","object":"chat.completion",' + ",".join(parts) + "}").encode()


PLAIN = answer("choices", USAGE)


class Script(Scripted):
    """A server that sends this answer in pieces, cut where the request says."""

    body: bytes
    kind: str
    encoding: str
    status: int

    def __init__(self) -> None:
        self.says()

    def says(
        self,
        body: bytes = PLAIN,
        kind: str = "application/json",
        encoding: str = "",
        status: int = 200,
    ) -> None:
        self.body, self.kind, self.encoding, self.status = body, kind, encoding, status

    async def answer(self, head: str, cuts: list[int], writer: asyncio.StreamWriter) -> None:
        body = gzip.compress(self.body, mtime=0) if self.encoding == "gzip" else self.body
        lines = [f"HTTP/1.1 {self.status} x", f"content-type: {self.kind}"]
        lines += [f"content-encoding: {self.encoding}"] if self.encoding else []
        lines += [f"content-length: {len(body)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            writer.write(body[start:end])
            await writer.drain()
            if cuts:
                await asyncio.sleep(PAUSE_S)


@pytest.fixture(scope="module")
def shared_script() -> Script:
    return Script()


@pytest.fixture
def script(shared_script: Script) -> Script:
    shared_script.says()
    return shared_script


@pytest.fixture(scope="module")
def gateway(shared_script: Script, make_gateway: MakeGateway) -> Iterator[Gateway]:
    policy = {
        "pools": {"large": {"server": "other"}},
        "routing": {"fallback": {"small": [], "large": []}},
    }
    with served(shared_script, MODELS) as urls:
        backends = {pool: (url,) for pool, url in urls.items()}
        yield make_gateway(policy=policy, backends=backends)


@asynccontextmanager
async def counted(gateway: Gateway, tokens: dict[str, int]) -> AsyncIterator[None]:
    """In here these tokens are counted in each pool, and no others."""
    of = {(pool, kind): count for pool in MODELS for kind, count in tokens.items()}
    lines = [f'forebay_tokens_total{{kind="{kind}",pool="{pool}"' for pool, kind in of]
    before = gateway.metrics(*lines)
    yield
    await asyncio.to_thread(gateway.wait_until_accounted)
    after = gateway.metrics(*lines)
    assert {which: new - old for which, new, old in zip(of, after, before, strict=True)} == of


async def ask_all(gateway: Gateway, all_cuts: list[list[int]]) -> list[Answer]:
    """Each server, once for each of the cuts."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(model: str, cuts: list[int]) -> Answer:
        async with gate:
            return await gateway.ask(chat(json.dumps(cuts), model=model))

    return await asyncio.gather(*(one(m, cuts) for m in MODELS.values() for cuts in all_cuts))


async def passes(
    gateway: Gateway, script: Script, all_cuts: list[list[int]], tokens: dict[str, int]
) -> None:
    """Once for each of the cuts, with these tokens each time."""
    async with counted(gateway, {kind: count * len(all_cuts) for kind, count in tokens.items()}):
        answers = await ask_all(gateway, all_cuts)
    for got in answers:
        assert (got.status, got.body) == (script.status, script.body)
        assert got.headers["content-type"] == script.kind


SHAPES: dict[str, tuple[bytes, dict[str, int]]] = {
    "as vLLM writes it": (PLAIN, ALL),
    "before the choices": (answer(USAGE, "choices"), ALL),
    "with blanks": (json.dumps(json.loads(PLAIN), indent=4).encode(), ALL),
    "with blanks before colons": (PLAIN.replace(b":", b" \r\n\t: "), ALL),
    "with members behind it": (answer("choices", USAGE, '"kv_transfer_params":null'), ALL),
    "without details": (
        answer("choices", '"usage":{"prompt_tokens":7,"completion_tokens":3}'),
        {"prompt": 7, "completion": 3, "cached": 0},
    ),
    "null details": (
        answer(
            "choices",
            '"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":null}',
        ),
        {"prompt": 7, "completion": 3, "cached": 0},
    ),
    "numbers that are not whole": (
        answer("choices", '"usage":{"prompt_tokens":7.5,"completion_tokens":"3"}'),
        NONE,
    ),
    "null": (answer("choices", '"usage":null'), NONE),
    "none": (answer("choices"), NONE),
    "quoted in the content": (answer("choices", content=QUOTED), NONE),
    "quoted in the content, and a real one before": (
        answer(USAGE, "choices", content=QUOTED),
        ALL,
    ),
    "quoted in a quoted tool call": (answer(USAGE, "choices", content=CALLS), ALL),
    "quoted after backslashes": (answer(USAGE, "choices", content='\\"usage":' + QUOTED), ALL),
    "the word as a value": (answer(USAGE, "choices", '"kind":"usage","of":["usage"]'), ALL),
    "another object's usage": (answer('"a":{"usage":{"x":{"y":1}}}', "choices", USAGE), ALL),
    "a long one that is not ours": (
        answer('"a":{"usage":{"x":["' + "{" * 9000 + '"]}}', "choices", USAGE),
        ALL,
    ),
    "not JSON": (b'{"usage":' * 20_000, NONE),
    "nothing": (b"", NONE),
}


@pytest.mark.parametrize("name", SHAPES)
async def test_a_usage_is_counted_however_it_is_written(
    gateway: Gateway, script: Script, name: str
) -> None:
    body, tokens = SHAPES[name]
    script.says(body)
    length = len(body)
    cuts = [[], [length // 2], [length - 20], [length // 3, length // 3 + 5, length - 3]]
    await passes(gateway, script, cuts if length else [[]], tokens)


@pytest.mark.parametrize("name", ["as vLLM writes it", "before the choices", "with blanks"])
async def test_an_answer_split_at_any_byte_is_counted_once(
    gateway: Gateway, script: Script, name: str
) -> None:
    script.says(SHAPES[name][0])
    at, length = script.body.index(b'"usage"') - 2, len(script.body)
    end = script.body.index(b"cached_tokens") + 40
    cuts = [[cut] for cut in range(at, min(end, length))]
    await passes(gateway, script, cuts, ALL)


async def test_an_answer_in_single_bytes_is_counted(gateway: Gateway, script: Script) -> None:
    script.says(answer(USAGE, "choices", '"usage":null', content='say "usage'))
    await passes(gateway, script, [[*range(1, len(script.body))]], ALL)


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("application/json; charset=utf-8", ALL),
        ("application/json;charset=UTF-8", ALL),
        ("Application/JSON ; charset=utf-8", ALL),
        ("APPLICATION/JSON", ALL),
        ("application/problem+json", NONE),
    ],
)
async def test_what_says_that_it_is_json_is_counted(
    gateway: Gateway, script: Script, kind: str, tokens: dict[str, int]
) -> None:
    script.says(kind=kind)
    await passes(gateway, script, [[], [60]], tokens)


async def test_a_compressed_answer_passes_uncounted(gateway: Gateway, script: Script) -> None:
    script.says(encoding="gzip")  # the client of the test unpacks it
    await passes(gateway, script, [[], [60]], NONE)


async def test_an_answer_that_says_that_it_is_not_compressed_is_counted(
    gateway: Gateway, script: Script
) -> None:
    script.says(encoding="identity")
    await passes(gateway, script, [[], [60]], ALL)


async def test_an_error_is_no_usage(gateway: Gateway, script: Script) -> None:
    script.says(b'{"error":{"message":"no","type":"x","param":null,"code":null}}', status=400)
    await passes(gateway, script, [[]], NONE)
    script.says(b"<html>Oh no</html>", kind="text/html", status=500)
    async with counted(gateway, NONE):
        answers = await ask_all(gateway, [[]])
    assert [(got.status, got.code) for got in answers] == [(500, "upstream_error")] * len(MODELS)


def test_a_large_answer_does_not_hold_up_envoy(gateway: Gateway, script: Script) -> None:
    """Its CPU beside that of the same bytes as a kind that nobody reads. A parser of the whole took
    20 times as much, in which no other stream of its thread got on."""
    numbers = random.Random(1)
    vectors = [[numbers.uniform(-1, 1) for _ in range(1024)] for _ in range(64)]
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    body = json.dumps({"data": [{"embedding": one} for one in vectors], "usage": usage}).encode()
    assert len(body) > 1.3e6

    def cpu_of_one_s(kind: str) -> float:
        script.says(body, kind=kind)
        envoy, answers = gateway.stack.pid("envoy"), 30
        asked = json.dumps(chat("[]", model="small-7b"))
        connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=20)

        def ask(times: int) -> None:
            for _ in range(times):
                connection.request("POST", "/v1/chat/completions", asked, gateway.headers)
                assert connection.getresponse().read() == body

        ask(3)  # warm
        before_s = cpu_s(envoy)
        ask(answers)
        spent_s = cpu_s(envoy) - before_s
        connection.close()
        return spent_s / answers

    line = 'forebay_tokens_total{kind="completion",pool="small"'
    unread_s, before = cpu_of_one_s("application/x-unread"), gateway.metric(line)
    read_s = cpu_of_one_s("application/json")
    gateway.wait_until_accounted()
    assert gateway.metric(line) == before + 33 * 3
    assert read_s < 6 * unread_s, f"{read_s * 1e3:.1f} ms, and {unread_s * 1e3:.1f} ms unread"
