"""A thousand exchanges with every fault there is: each ends as its fault says, is called what it
was, and what is counted is what the servers themselves counted.

A sample in `make test`; all in `make soak` (FOREBAY_NUMBERS_EXCHANGES). FOREBAY_NUMBERS_SEED
repeats the draws of a run.
"""

import asyncio
import json
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e.client import CHAT, Gateway, chat
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
from tests.e2e.soak.wire import Request, send
from tests.gateways import MakeGateway

EXCHANGES = int(os.environ.get("FOREBAY_NUMBERS_EXCHANGES", "250"))
SEED = int(os.environ.get("FOREBAY_NUMBERS_SEED") or secrets.randbelow(10**6))
PROMPT = "Tell me a story"
DEADLINE_S, GRACE_S, STALL_S = 1.2, 0.3, 0.7
# Envoy closes a connection so much later than it cut the HTTP/1 answer on it.
CLOSE_S = 1.0
LONG_TOKENS = 5000
# An estimate may be so far off.
ESTIMATE_OFF = 0.25

POOLS: dict[Way, str] = {"ask": "small", "guard": "large"}
MODELS: dict[Way, str] = {"ask": "small-7b", "guard": "large-70b"}


def _at_deadline(asked: Asked, fault: int) -> Told:
    if asked.way == "ask":
        return "whole", "abort"
    return ("whole", "incomplete: deadline") if asked.stream else ("cut", "504")


def _deaf(asked: Asked, fault: int) -> Told:
    if asked.way == "ask":
        return "cut", "cut" if asked.stream else "504"
    return _at_deadline(asked, fault)


def _reset(asked: Asked, after: int) -> Told:
    return "reset", "cut" if asked.stream else "503"


def _stall(asked: Asked, after: int) -> Told:
    if not asked.stream:
        return "cut", "504"
    return "cut", "incomplete: stall" if asked.way == "guard" and after else "cut"


def _error_event(asked: Asked, after: int) -> Told:
    if not asked.stream:
        return "error", "500"
    return "error", "error event" if asked.way == "ask" else "incomplete: upstream_error"


@dataclass(frozen=True)
class Case:
    fault: str
    """Of the simulator; empty: none."""
    values: tuple[Any, ...]
    told: Callable[[Asked, Any], Told]
    long: bool = False
    """Its answers would last far beyond the deadline."""


CASES = {
    "calm": Case("", (None,), lambda asked, _: WHOLE),
    "slow": Case("latency_ms", (200,), lambda asked, _: WHOLE),
    "silent": Case("latency_ms", (9000,), lambda asked, _: ("cut", "504")),
    "refuses": Case("status", (429,), lambda asked, _: ("whole", "429")),
    "fails": Case("status", (500, 503), lambda asked, status: ("error", str(status))),
    "reset before": Case("reset_before", (True,), lambda asked, _: ("reset", "503")),
    # After 0 it is chance whether Envoy meets the head first, or the reset.
    "reset after": Case("reset_after", (1, 4, 9), _reset),
    "stall after": Case("stall_after", (0, 1, 4, 9), _stall),
    "error after": Case("error_event_after", (0, 1, 4, 9), _error_event),
    "deadline": Case("", (None,), _at_deadline, long=True),
    "deaf": Case("ignore_aborts", (True,), _deaf, long=True),
    "client leaves": Case("", (None,), lambda asked, _: ("client_left", "left"), long=True),
}
PASSES = max(EXCHANGES // 250, 1)
AT_ONCE = -(-EXCHANGES // (PASSES * len(CASES) * len(POOLS)))


def draw_one(draw: random.Random, way: Way, name: str) -> Asked:
    return Asked(
        way,
        stream=draw.random() < 0.65,
        http2=draw.random() < 0.5,
        usage=draw.random() < 0.4,
        chat=draw.random() < 0.7,
        choices=draw.choice([1, 1, 1, 2]),
        tokens=LONG_TOKENS if CASES[name].long else draw.randint(1, 24),
        leaves=name == "client leaves",
    )


def wanted(name: str, value: Any, asked: Asked) -> Told:
    case = CASES[name]
    if case.fault.endswith("_after") and asked.tokens <= value:
        return WHOLE  # it is over before
    return case.told(asked, value)


def _request(asked: Asked, gateway: Gateway) -> Request:
    return request(asked, key=gateway.key, model=MODELS[asked.way], prompt=PROMPT)


# --- one round: a fault, and so many exchanges that all meet it -----------------------------------


@dataclass
class Books:
    """Of one pool, from the processor and from its server."""

    gateway: Gateway
    pool: str
    before: dict[str, float] = field(default_factory=dict)

    def read(self) -> dict[str, float]:
        found = counters(self.gateway, self.pool)
        url = self.gateway.stack.config.backend_urls[self.pool]
        for line in self.gateway.get(f"{url}/metrics").decode().splitlines():
            if line.startswith("vllm:generation_tokens_total"):
                found["generated"] = float(line.rpartition(" ")[2])
        return found

    async def gained(self, answers: int) -> dict[str, float]:
        """Since the last call, when so many answers more have been accounted and the server is
        idle."""
        now: dict[str, float] = {}

        def all_told() -> bool:
            nonlocal now
            idle = self.gateway.running(self.pool) == 0
            now = self.read()
            told = now.get("answers_total", 0) - self.before.get("answers_total", 0)
            return idle and told == answers

        await self.gateway.until_async(
            all_told, "an exchange was not accounted, or the server works"
        )
        gained = {name: value - self.before.get(name, 0) for name, value in now.items()}
        self.before = now
        return gained


@dataclass
class Sums:
    outcomes: Counter[str] = field(default_factory=Counter)
    latest_s: dict[str, float] = field(default_factory=dict)
    """Beyond the deadline, by what the client saw."""
    bad_by_id: dict[str, str] = field(default_factory=dict)
    """How the answers ended that did not end whole, by request."""
    by_bytes: list[tuple[float, int]] = field(default_factory=list)
    """Of each round: estimated, and what clients saw."""
    prompts: list[tuple[float, int]] = field(default_factory=list)
    """Of each round: estimated, and what those had that a server worked on."""


async def one_round(
    gateway: Gateway, books: Books, name: str, value: Any, all_asked: list[Asked], sums: Sums
) -> None:
    case = CASES[name]
    gateway.set_faults(books.pool, {case.fault: value} if case.fault else {})
    host, _, port = gateway.url.removeprefix("http://").partition(":")

    async def ask(asked: Asked) -> tuple[Seen, float]:
        began = time.monotonic()
        async with asyncio.timeout(DEADLINE_S + 10):
            got = await send((host, int(port)), _request(asked, gateway))
        return see(asked, got), time.monotonic() - began

    results = await asyncio.gather(*map(ask, all_asked))
    where = f"{books.pool}, {name} {value}"
    endings: Counter[str] = Counter()
    for asked, (seen, took_s) in zip(all_asked, results, strict=True):
        ending, what = wanted(name, value, asked)
        assert seen.what == what, f"{where}: {asked}: {seen}"
        endings[ending] += 1
        late_s = took_s - DEADLINE_S
        closes_late = what == "cut" and not asked.http2
        assert late_s < 1 + closes_late * CLOSE_S, f"{where}: {asked} took {took_s:.2f} s"
        kind = f"{what}{', HTTP/1.1' if closes_late else ''}"
        sums.outcomes[f"{books.pool}: {ending}: {kind}"] += 1
        sums.latest_s[kind] = max(sums.latest_s.get(kind, -DEADLINE_S), late_s)

    gained = await books.gained(len(all_asked))
    assert labelled(gained, "endings_total") == endings, where
    sums.bad_by_id |= {
        seen.request_id: ending
        for asked, (seen, _) in zip(all_asked, results, strict=True)
        if (ending := wanted(name, value, asked)[0]) != "whole" and seen.request_id
    }
    closed = Counter(
        seen.what.removeprefix("incomplete: ") for seen, _ in results if "incomplete" in seen.what
    )
    stalled = sum(wanted(name, value, a)[1] == "cut" for a in all_asked) * (name == "stall after")
    if books.pool == POOLS["guard"] and stalled:
        closed["stall"] += stalled  # a head had come, and nothing that an end could follow
    assert labelled(gained, "closed_answers_total") == closed, where
    _check_tokens(gateway, books, gained, all_asked, [seen for seen, _ in results], where, sums)


def _check_tokens(
    gateway: Gateway,
    books: Books,
    gained: dict[str, float],
    all_asked: list[Asked],
    all_seen: list[Seen],
    where: str,
    sums: Sums,
) -> None:
    received = {one["id"]: one for one in gateway.received(books.pool)}
    url = gateway.stack.config.backend_urls[books.pool]
    gateway.get(f"{url}/sim/requests", "DELETE")
    assert gained["generated"] == sum(one["tokens"] for one in received.values()), where
    prompt = completion = 0
    for one in received.values():
        if one["ended"] in ("stop", "length", "abort"):
            completion += one["tokens"]
            prompt += PROMPT_TOKENS[one["path"]]
    for asked, seen in zip(all_asked, all_seen, strict=True):
        if seen.what in ("whole", "abort") and seen.usage is not None:
            assert seen.usage["completion_tokens"] == received[seen.request_id]["tokens"], where
            assert seen.usage["prompt_tokens"] == PROMPT_TOKENS[asked.path]
        elif seen.usage is not None:
            assert seen.usage["completion_tokens"] == seen.tokens, where
    tokens = labelled(gained, "tokens_total")
    assert tokens.get("completion", 0) == completion, where
    assert tokens.get("prompt", 0) == prompt, where

    # What has not ended is estimated, and called so.
    unfinished = [s for s in all_seen if s.what not in ("whole", "abort") and s.tokens]
    estimated, saw = tokens.get("completion_estimated", 0), sum(s.tokens for s in unfinished)
    if not unfinished:
        # An error event alone has bytes too.
        assert estimated <= sum(seen.what == "error event" for seen in all_seen), where
    elif all("incomplete" in seen.what for seen in unfinished):
        assert estimated == saw, where
    else:
        sums.by_bytes.append((estimated, saw))
    worked_on = sum(
        PROMPT_TOKENS[asked.path]
        for asked, seen in zip(all_asked, all_seen, strict=True)
        if (seen.what in ("504", "left") and not asked.stream)
        or (seen.what not in ("whole", "abort") and (seen.tokens or seen.what == "error event"))
    )
    sums.prompts.append((tokens.get("prompt_estimated", 0), worked_on))
    assert bool(worked_on) == ("prompt_estimated" in tokens), where
    first_tokens = sum(
        asked.stream
        and (seen.tokens > 0 or seen.what in ("error event", "incomplete: upstream_error"))
        for asked, seen in zip(all_asked, all_seen, strict=True)
    )
    # On a busy machine a reset overtakes the first token on its way from Envoy to the client.
    overtaken = sum(
        "reset after" in where and asked.stream and seen.what == "cut" and not seen.tokens
        for asked, seen in zip(all_asked, all_seen, strict=True)
    )
    counted = gained.get("ttft_seconds_count", 0)
    assert first_tokens <= counted <= first_tokens + overtaken, where


PROMPT_TOKENS: dict[str, int] = {}


@pytest.mark.timeout(600)
async def test_every_ending_is_what_it_is_called_and_all_tokens_are_counted(
    make_gateway: MakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    sim = ("--max-num-seqs", "64")
    gateway = await asyncio.to_thread(
        make_gateway,
        policy={
            "pools": {"small": {"slots": 64}, "large": {"slots": 64, "server": "other"}},
            "routing": {"fallback": {"small": [], "large": []}},
            "response": {
                "deadline": f"{DEADLINE_S}s",
                "grace": f"{GRACE_S}s",
                "stall": f"{STALL_S}s",
            },
        },
        sim_args={"small": sim, "large": sim},
    )
    for path in (CHAT, COMPLETIONS):
        for way, model in MODELS.items():  # streams: what one token takes in bytes is known then
            said = (
                {"prompt": PROMPT}
                if path == COMPLETIONS
                else {"messages": chat(PROMPT)["messages"]}
            )
            body = {"model": model, "max_tokens": 12, **said}
            whole = await gateway.ask(body, path)
            PROMPT_TOKENS[path] = whole.json["usage"]["prompt_tokens"]
            await gateway.ask(body | {"stream": True}, path)
            gateway.get(f"{gateway.stack.config.backend_urls[POOLS[way]]}/sim/requests", "DELETE")
    await asyncio.to_thread(gateway.wait_until_accounted)
    sums = Sums()

    async def all_rounds(way: Way) -> None:
        draw = random.Random(f"{SEED} {way}")
        books = Books(gateway, POOLS[way])
        books.before = books.read()
        for _ in range(PASSES):
            for name in draw.sample([*CASES], len(CASES)):
                all_asked = [draw_one(draw, way, name) for _ in range(AT_ONCE)]
                value = draw.choice(CASES[name].values)
                await one_round(gateway, books, name, value, all_asked, sums)

    await asyncio.gather(all_rounds("ask"), all_rounds("guard"))

    with capsys.disabled():
        print(f"\nnumbers: {sums.outcomes.total()} exchanges, FOREBAY_NUMBERS_SEED={SEED}")
        for outcome, count in sorted(sums.outcomes.items()):
            print(f"  {count:5}  {outcome}")
        for kind, late_s in sorted(sums.latest_s.items()):
            print(f"  latest: {late_s:+.2f} s from the deadline: {kind}")
        estimated, saw = _columns(sums.by_bytes)
        print(f"  estimated by bytes: {estimated:.0f} tokens, of {saw:.0f} that clients saw")
        prompts, took = _columns(sums.prompts)
        print(f"  estimated of prompts: {prompts:.0f} tokens, of {took:.0f}")
    assert abs(estimated - saw) < ESTIMATE_OFF * saw
    assert abs(prompts - took) < ESTIMATE_OFF * took
    gateway.wait_until_idle()
    await asyncio.sleep(0.3)  # lines are written ten times a second
    lines = [*map(json.loads, (gateway.stack.folder / "processor.log").read_text().splitlines())]
    logged = {line["request_id"]: line["ending"] for line in lines if line["message"] == "ending"}
    assert logged.items() >= sums.bad_by_id.items()


def _columns(pairs: list[tuple[float, int]]) -> tuple[float, float]:
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
