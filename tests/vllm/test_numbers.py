"""Mixed exchanges with real vLLM, each of a kind whose end is known.

Every one is called what it was, what ended is counted as the server counts it, what did not is
estimated, and nobody is left hanging. The last two tests take a server's life each.
"""

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.e2e.client import CHAT, Gateway
from tests.e2e.numbers import (
    COMPLETIONS,
    WHOLE,
    Asked,
    Seen,
    Told,
    Way,
    counters,
    labelled,
    request,
    see,
)
from tests.e2e.soak.wire import Leave, Request, send
from tests.gateways import MakeGateway
from tests.vllm.servers import MAX_NUM_SEQS, Fleet, Server

WAYS: tuple[Way, ...] = ("ask", "guard")
MODELS = {"small": "small-7b", "large": "large-70b"}
# Of the tenant `acme`; that of others, of `nightly` here, no exchange reaches.
DEADLINE_S, GRACE_S, STALL_S = 2.5, 0.5, 1.2
LONGEST_S = 30.0
NIGHTLY = "sk-demo-nightly"
# Envoy closes a connection so much later than it cut the HTTP/1 answer on it.
CLOSE_S = 1.0
AT_ONCE = 5
ENDLESS_TOKENS = 1900
# By bytes and by the length of texts: an estimate may be so far off.
ESTIMATE_OFF = 0.35
# More than the 128 tokens that vLLM keeps together in its prefix cache here; more than it takes.
LONG_PROMPT, TOO_LONG = "word " * 150, "word " * 3000


@dataclass(frozen=True)
class Kind:
    told: Callable[[Asked], Told]
    count: int
    """In a run of each way."""
    prompt: str = "Tell me a story"
    hurried: bool = False
    """Has the deadline."""
    endless: bool = False
    more: tuple[tuple[str, Any], ...] = ()
    """Further members of the body."""


def _whole(asked: Asked) -> Told:
    return WHOLE


def _refused(asked: Asked) -> Told:
    return "whole", "400"


def _at_deadline(asked: Asked) -> Told:
    by_guard = asked.way == "guard" and asked.stream
    return "whole", "incomplete: deadline" if by_guard else "abort"


def _silent(asked: Asked) -> Told:
    if not asked.stream:
        return "cut", "504"
    return "cut", "cut" if asked.way == "ask" else "incomplete: stall"


def _reset(asked: Asked) -> Told:
    return "reset", "cut" if asked.stream else "503"


KINDS = {
    "whole": Kind(_whole, 34),
    "long prompt": Kind(_whole, 8, LONG_PROMPT),
    "deadline": Kind(_at_deadline, 8, LONG_PROMPT, hurried=True, endless=True),
    "bad value": Kind(_refused, 3, more=(("top_p", 5),)),
    "too long": Kind(_refused, 3, TOO_LONG),
    "leaves": Kind(lambda asked: ("client_left", "left"), 12, LONG_PROMPT, endless=True),
    "silent": Kind(_silent, 4, LONG_PROMPT, hurried=True, endless=True),
    "killed": Kind(_reset, 4, LONG_PROMPT, endless=True),
    "ended": Kind(_reset, 4, LONG_PROMPT, hurried=True, endless=True),
}


def draw(way: Way, name: str, chance: random.Random) -> Asked:
    return Asked(
        way,
        stream=chance.random() < 0.65,
        http2=chance.random() < 0.5,
        usage=chance.random() < 0.4,
        chat=chance.random() < 0.7,
        choices=chance.choice([1, 1, 2]) if name == "whole" else 1,
        tokens=ENDLESS_TOKENS if KINDS[name].endless else chance.randint(1, 24),
        leaves=name == "leaves",
    )


# --- gateways and books ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(fleet: Fleet, make_gateway: MakeGateway) -> dict[Way, Gateway]:
    """In front of both servers; their streams end by asking, or by the guard."""
    backends = {server.name: (server.url,) for server in fleet.living("small", "large")}

    def made(way: Way) -> Gateway:
        pools = {pool: {"slots": 2 * MAX_NUM_SEQS, "partial_by": way} for pool in backends}
        response = {"deadline": f"{LONGEST_S}s", "grace": f"{GRACE_S}s", "stall": f"{STALL_S}s"}
        tenants = {"acme": {"deadline": f"{DEADLINE_S}s"}, "nightly": {}}
        return make_gateway(
            backends=backends,
            policy={
                "pools": pools,
                "routing": {"fallback": {"small": [], "large": []}},
                "response": response,
                "tenants": tenants,
                "admission": {"high_water": 64},
            },
        )

    return {way: made(way) for way in WAYS}


class Books:
    """Of one pool: the processor's and the server's."""

    def __init__(self, gateway: Gateway, server: Server) -> None:
        self.gateway, self.server = gateway, server
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        found = counters(self.gateway, self.server.name)
        if self.server.process.poll() is None:
            for name in ("prompt_tokens", "generation_tokens", "prompt_tokens_cached"):
                found[name] = self.server.metric(f"vllm:{name}_total")
        return found

    async def gained(self, answers: int) -> dict[str, float]:
        """Since the last call, when so many more are accounted and the server, if it lives, is
        idle."""
        name = "answers_total"

        def all_told() -> bool:
            lives = self.server.process.poll() is None
            found = counters(self.gateway, self.server.name)
            told = found.get(name, 0) - self._before.get(name, 0)
            return told == answers and not (lives and self.server.running())

        await self.gateway.until_async(all_told, "not accounted, or the server works on", 10)
        now = self._read()
        gained = {name: now[name] - self._before.get(name, 0) for name in now}
        self._before = now
        return gained


Done = tuple[str, Asked, Seen]
"""The kind, and what became of one."""


def _made(name: str, asked: Asked, gateway: Gateway, model: str) -> Request:
    kind = KINDS[name]
    key = gateway.key if kind.hurried else NIGHTLY
    more = {"ignore_eos": True, **dict(kind.more)}
    return request(asked, key=key, model=model, prompt=kind.prompt, **more)


async def ask(name: str, asked: Asked, gateway: Gateway, server: Server) -> Done:
    """One exchange; its client must not hang."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    began = time.monotonic()
    async with asyncio.timeout(LONGEST_S + GRACE_S + 1 + CLOSE_S):
        got = await send((host, int(port)), _made(name, asked, gateway, MODELS[server.name]))
    seen, took_s = see(asked, got), time.monotonic() - began
    closes_late = seen.what == "cut" and not asked.http2
    if KINDS[name].hurried:
        assert took_s < DEADLINE_S + 1 + closes_late * CLOSE_S, f"{asked} took {took_s:.2f} s"
    return name, asked, seen


async def mixed(way: Way, names: list[str], gateway: Gateway, server: Server) -> list[Done]:
    """All exchanges of these kinds, in any order, so many at once as the server runs."""
    chance = random.Random(f"{way} {names}")
    all_asked = [
        (name, draw(way, name, chance)) for name in names for _ in range(KINDS[name].count)
    ]
    chance.shuffle(all_asked)
    places = asyncio.Semaphore(AT_ONCE)

    async def one(name: str, asked: Asked) -> Done:
        async with places:
            return await ask(name, asked, gateway, server)

    return await asyncio.gather(*(one(name, asked) for name, asked in all_asked))


def check_called_right(done: list[Done], gained: dict[str, float]) -> None:
    """What each client saw, and that as many are called so."""
    endings: Counter[str] = Counter()
    for name, asked, seen in done:
        ending, what = KINDS[name].told(asked)
        assert seen.what == what, f"{name}: {asked}: {seen}"
        endings[ending] += 1
    assert labelled(gained, "endings_total") == endings


def say(fleet: Fleet, done: list[Done]) -> None:
    outcomes = Counter(f"{asked.way}: {name}: {seen.what}" for name, asked, seen in done)
    fleet.say(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))


def check_estimates(
    done: list[Done], gained: dict[str, float], prompts: dict[tuple[str, str], int]
) -> None:
    unfinished = [one for one in done if one[2].what not in ("whole", "abort", "no reason")]
    tokens = labelled(gained, "tokens_total")
    for kind, took in (
        ("completion_estimated", sum(seen.tokens for _, _, seen in unfinished)),
        ("prompt_estimated", sum(prompts[a.path, KINDS[name].prompt] for name, a, _ in unfinished)),
    ):
        assert abs(tokens[kind] - took) < ESTIMATE_OFF * took, f"{kind}: {tokens[kind]} of {took}"


@pytest.fixture(scope="module")
def prompts(fleet: Fleet) -> dict[tuple[str, str], int]:
    """Tokens of each prompt, by endpoint, as the server says."""
    [server] = fleet.living("large")
    client, model, found = server.client(), MODELS["large"], {}
    for text in {kind.prompt for kind in KINDS.values()} - {TOO_LONG}:
        said: Any = [{"role": "user", "content": text}]
        chat = client.chat.completions.create(model=model, messages=said, max_tokens=1)
        plain = client.completions.create(model=model, prompt=text, max_tokens=1)
        assert chat.usage
        assert plain.usage
        found[CHAT, text] = chat.usage.prompt_tokens
        found[COMPLETIONS, text] = plain.usage.prompt_tokens
    return found


# --- the tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_all_that_ends_is_counted_as_the_server_counts_it(
    both: dict[Way, Gateway],
    prompts: dict[tuple[str, str], int],
    large: Server,
    fleet: Fleet,
    way: Way,
) -> None:
    """vLLM counts a prompt for each of its `n` choices, and once in the usage."""
    books = Books(both[way], large)
    ends = ["whole", "long prompt", "bad value", "too long", *["deadline"] * (way == "ask")]
    done = await mixed(way, ends, both[way], large)
    say(fleet, done)
    gained = await books.gained(len(done))
    check_called_right(done, gained)

    served = [
        (asked, seen, prompts[asked.path, KINDS[name].prompt])
        for name, asked, seen in done
        if seen.what != "400"
    ]
    tokens = labelled(gained, "tokens_total")
    assert tokens["prompt"] == sum(prompt for *_, prompt in served)
    assert gained["prompt_tokens"] == sum(prompt * asked.choices for asked, _, prompt in served)
    assert tokens["completion"] == gained["generation_tokens"]
    assert tokens["cached"] == gained["prompt_tokens_cached"] > 0
    assert not {"prompt_estimated", "completion_estimated"} & tokens.keys()
    for asked, seen, prompt in served:
        if seen.usage is not None:
            assert seen.usage["prompt_tokens"] == prompt
            if seen.what == "whole":
                assert seen.usage["completion_tokens"] == asked.tokens * asked.choices
    assert gained["ttft_seconds_count"] == sum(asked.stream for asked, *_ in served)


@pytest.mark.parametrize("way", WAYS)
async def test_what_does_not_end_is_called_so_and_estimated(
    both: dict[Way, Gateway],
    prompts: dict[tuple[str, str], int],
    large: Server,
    fleet: Fleet,
    way: Way,
) -> None:
    books = Books(both[way], large)
    names = ["leaves", *["deadline"] * (way == "guard")]
    done = await mixed(way, names, both[way], large)
    say(fleet, done)
    gained = await books.gained(len(done))
    check_called_right(done, gained)
    check_estimates(done, gained, prompts)
    counted = sum(seen.usage["completion_tokens"] for *_, seen in done if seen.what == "abort")
    assert labelled(gained, "tokens_total").get("completion", 0) == counted


@pytest.mark.parametrize("way", WAYS)
async def test_clients_of_a_server_that_stands_still_are_told_in_time(
    both: dict[Way, Gateway],
    prompts: dict[tuple[str, str], int],
    large: Server,
    fleet: Fleet,
    way: Way,
) -> None:
    books = Books(both[way], large)
    under_way = await begin("silent", way, both[way], large)
    large.signal(signal.SIGSTOP)
    try:
        done = await asyncio.gather(*under_way)
    finally:
        large.signal(signal.SIGCONT)
    say(fleet, done)
    await both[way].until_async(lambda: both[way].status("large")["up"], "still called down")
    gained = await books.gained(len(done))
    check_called_right(done, gained)
    check_estimates(done, gained, prompts)


async def test_a_deadline_before_the_first_token_ends_an_answer_of_no_token(
    both: dict[Way, Gateway], prompts: dict[tuple[str, str], int], large: Server
) -> None:
    """The server runs others, and aborts what waits there. It then writes no finish reason into a
    stream, and does not count the prompt, though its usage does."""
    gateway, books = both["ask"], Books(both["ask"], large)
    plain = Asked("ask", True, False, True, True, 1, ENDLESS_TOKENS, False)
    leaves = replace(_made("leaves", plain, gateway, MODELS["large"]), leave=Leave(after_s=4.0))
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    others = [asyncio.create_task(send((host, int(port)), leaves)) for _ in range(MAX_NUM_SEQS)]
    await gateway.until_async(lambda: large.running() == MAX_NUM_SEQS, "others do not run")
    waiting = [plain, replace(plain, http2=True), replace(plain, stream=False)]
    done = await asyncio.gather(*(ask("deadline", asked, gateway, large) for asked in waiting))
    assert [seen.what for *_, seen in done] == ["no reason", "no reason", "abort"]
    assert [seen.usage["completion_tokens"] for *_, seen in done if seen.usage] == [0, 0, 0]
    assert {got.end for got in await asyncio.gather(*others)} == {"left"}
    gained = await books.gained(len(done) + len(others))
    assert labelled(gained, "endings_total") == {"whole": len(done), "client_left": len(others)}
    tokens = labelled(gained, "tokens_total")
    assert tokens["prompt"] == len(done) * prompts[CHAT, KINDS["deadline"].prompt]
    assert "completion" not in tokens


# --- a server's death ----------------------------------------------------------------------------


async def test_what_a_killed_server_was_at_is_reset(
    both: dict[Way, Gateway],
    prompts: dict[tuple[str, str], int],
    large: Server,
    fleet: Fleet,
) -> None:
    books = {way: Books(both[way], large) for way in WAYS}
    under_way = {way: await begin("killed", way, both[way], large) for way in WAYS}
    large.kill()
    async with asyncio.timeout(CLOSE_S + 1):
        all_done = {way: await asyncio.gather(*under_way[way]) for way in WAYS}
    for way, done in all_done.items():
        say(fleet, done)
        gained = await books[way].gained(len(done))
        check_called_right(done, gained)
        check_estimates([one for one in done if one[1].stream], gained, prompts)


# After SIGTERM vLLM with default settings ends answers by chance: see test_server_deaths.py.
AFTER_SIGTERM = {
    "abort": {"whole"},
    "error event": {"error"},
    "incomplete: upstream_error": {"error"},
    "incomplete: stall": {"cut"},
    "cut": {"cut", "reset"},
    "500": {"error"},
    "503": {"reset", "error"},
    "504": {"cut"},
}


async def test_what_a_server_told_to_end_was_at_is_called_what_its_clients_saw(
    both: dict[Way, Gateway], fleet: Fleet
) -> None:
    [small] = fleet.living("small")
    books = {way: Books(both[way], small) for way in WAYS}
    under_way = {way: await begin("ended", way, both[way], small) for way in WAYS}
    small.process.terminate()
    all_done = {way: await asyncio.gather(*under_way[way]) for way in WAYS}
    small.kill()
    for way, done in all_done.items():
        say(fleet, done)
        gained = await books[way].gained(len(done))
        await asyncio.sleep(0.3)  # lines are written ten times a second
        called = {line["request_id"]: line["ending"] for line in endings_logged(both[way])}
        for _, asked, seen in done:
            assert seen.request_id
            ending = called.get(seen.request_id, "whole")
            assert ending in AFTER_SIGTERM[seen.what], f"{asked}: {seen}: {ending}"
        assert sum(labelled(gained, "endings_total").values()) == len(done)


def endings_logged(gateway: Gateway) -> list[dict[str, Any]]:
    lines = (gateway.stack.folder / "processor.log").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["message"] == "ending"]


async def begin(name: str, way: Way, gateway: Gateway, server: Server) -> list[asyncio.Task[Done]]:
    """Four exchanges, one of each sort; all have some tokens when this returns."""
    before = server.running()
    stream = Asked(way, True, False, False, True, 1, ENDLESS_TOKENS, leaves=False)
    sorts = [
        stream,
        replace(stream, http2=True),
        replace(stream, chat=False, usage=True),
        replace(stream, stream=False),
    ]
    tasks = [asyncio.create_task(ask(name, asked, gateway, server)) for asked in sorts]
    await gateway.until_async(
        lambda: server.running() == before + len(sorts), "not all are under way"
    )
    generated = server.metric("vllm:generation_tokens_total")
    enough = generated + 4 * len(sorts)
    await gateway.until_async(
        lambda: server.metric("vllm:generation_tokens_total") >= enough, "they say nothing"
    )
    return tasks
