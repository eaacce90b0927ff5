"""What `forebay bench overhead` puts side by side: how each is started, what it is sent, and what
every answer of it must be.
"""

import http.client
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from extproc.bench import foreign
from extproc.bench.envoy import BUFFERED_BOTH, BUFFERED_REQUEST
from extproc.bench.lab import BenchError, Lab
from extproc.bench.load import NUMBER, Job, Request
from extproc.bench.upstream import ANSWER_TEXT
from extproc.up import Stack

_READY_WITHIN_S = 30.0
KEY = "sk-demo-acme"
_GUARD = {"max_tokens": 1_000_000, "tokens_per_fill": 1_000_000, "fill_interval": "1s"}


@dataclass(frozen=True)
class Running:
    """A contender that answers."""

    url: str
    pids: dict[str, int]
    """What its CPU time is read from: `envoy` and `processor`, or `proxy`."""
    request: Request
    ready_request: Request
    """Answered 200 as soon as all of it is up."""
    during: Callable[[], AbstractContextManager[None]] = nullcontext
    """Around every measurement: what must be so while it is measured."""
    counter: Callable[[], float] | None = None
    """Something that must grow by one with each request: proof that the way was taken that the
    contender is here for."""
    stack: Stack | None = None
    """Forebay's own processes, where it is Forebay."""


@dataclass(frozen=True)
class Contender:
    what: str
    start: Callable[[Lab, str], Running]
    """Given the upstream's URL."""
    foreign: bool = False


def _body(number: str, text: str = "is the sky blue?", **more: object) -> str:
    """One size for all: what differs is the number, or nothing."""
    messages = [{"role": "user", "content": f"Question {number}: {text}"}]
    body = {"model": "auto", "temperature": 0, "messages": messages, **more}
    return json.dumps(body, separators=(",", ":"))


_DIFFERENT, _SAME = _body(NUMBER), _body("000000000000")
_PLAIN = Request(_DIFFERENT, expect=(ANSWER_TEXT,))
_OURS = Request(
    _DIFFERENT,
    {"x-api-key": KEY},
    expect=(ANSWER_TEXT, "x-forebay-served-by: small"),
)


def _envoy(lab: Lab, upstream: str) -> Running:
    url, pid = lab.envoy("envoy", upstream)
    return Running(url, {"envoy": pid}, _PLAIN, _PLAIN)


def _yardstick(lab: Lab, upstream: str, *, does: str, expect: str) -> Running:
    processor = lab.minimal(does, does)
    mode = BUFFERED_BOTH if does == "show" else BUFFERED_REQUEST
    url, pid = lab.envoy(does, upstream, mode)
    request = replace(_PLAIN, expect=(expect,))
    return Running(url, {"envoy": pid, "processor": processor}, request, request)


def _forebay(lab: Lab, upstream: str) -> Running:
    stack = lab.forebay("forebay", upstream, _without_cache)
    return _ours(stack, _OURS)


def _fill(lab: Lab, upstream: str) -> Running:
    stack = lab.forebay("fill", upstream, raise_guard)
    request = replace(_OURS, expect=(*_OURS.expect, "cache-status: forebay; fwd=uri-miss"))
    return _ours(stack, request, counter=partial(_metric, stack, "forebay_cache_stored_total"))


def _hit(lab: Lab, upstream: str) -> Running:
    stack = lab.forebay("hit", upstream, raise_guard)
    request = replace(_OURS, body=_SAME, expect=(ANSWER_TEXT, "cache-status: forebay; hit"))
    ready = replace(_OURS, body=_SAME)  # the one answer that is stored
    return _ours(stack, request, ready)


def _shed(lab: Lab, upstream: str) -> Running:
    """One slot for each pool and no queue; while it is measured, a long answer holds each slot."""
    slow = lab.upstream("slow-upstream", chunk_ms=500)
    stack = lab.forebay("shed", slow, _one_slot)
    return _ours(
        stack,
        replace(_OURS, status=429, expect=('"code":"overloaded"', "retry-after: ")),
        during=partial(_slots_held, stack.config.url),
        counter=partial(_messages_to_processor, stack),
    )


def _litellm(lab: Lab, upstream: str) -> Running:
    url, pid = foreign.litellm(lab, upstream)
    headers = {"authorization": f"Bearer {foreign.LITELLM_KEY}"}
    request = replace(_PLAIN, headers=headers)
    return Running(url, {"proxy": pid}, request, request)


def _vllm_router(lab: Lab, upstream: str) -> Running:
    url, pid = foreign.vllm_router(lab, upstream)
    return Running(url, {"proxy": pid}, _PLAIN, _PLAIN)


def _ours(
    stack: Stack,
    request: Request,
    ready: Request = _OURS,
    during: Callable[[], AbstractContextManager[None]] = nullcontext,
    counter: Callable[[], float] | None = None,
) -> Running:
    pids = {name: stack.pid(name) for name in ("envoy", "processor")}
    return Running(stack.config.url, pids, request, ready, during, counter, stack)


# --- edits of the reference config ----------------------------------------------------------------


def raise_guard(document: Any) -> None:
    """The gateway's own guard allows a tenant 500 requests a second; here it must not be met."""
    manager = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    for http_filter in manager["typed_config"]["http_filters"]:
        if http_filter["name"] == "envoy.filters.http.local_ratelimit":
            guard = http_filter["typed_config"]
            guard["token_bucket"] = guard["descriptors"][0]["token_bucket"] = _GUARD


def _without_cache(document: Any) -> None:
    raise_guard(document)
    del document["node"]["metadata"]["forebay"]["cache"]


def _one_slot(document: Any) -> None:
    _without_cache(document)
    policy = document["node"]["metadata"]["forebay"]
    for pool in policy["pools"].values():
        pool["slots"] = 1
    policy["admission"] |= {"high_water": 0, "low_water": 0}
    policy["response"]["deadline"] = "10m"
    policy["drain"] = "1s"


# --- shedding, for real ---------------------------------------------------------------------------

_TO_POOL = {"small": "is the sky blue?", "large": "compare the sky with the sea"}
"""Texts that the rules send to either pool."""


@contextmanager
def _slots_held(url: str) -> Iterator[None]:
    """Both slots taken, and one request turned away at each pool: from then on both shed."""
    held: list[http.client.HTTPConnection] = []
    try:
        for pool, text in _TO_POOL.items():
            connection, answer = _ask(url, _body("0", text, stream=True, max_tokens=1000))
            held.append(connection)
            served_by = answer.getheader("x-forebay-served-by")
            if answer.status != 200 or served_by != pool:
                raise BenchError(f"a stream meant for {pool}: {answer.status} from {served_by}")
        for pool, text in _TO_POOL.items():
            connection, answer = _ask(url, _body("0", text))
            connection.close()
            if answer.status != 429:
                raise BenchError(f"{pool} is full, but answered {answer.status}")
        yield
    finally:
        for connection in held:
            connection.close()


def _ask(url: str, body: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    headers = {"x-api-key": KEY, "content-type": "application/json"}
    # A slot that a request before us held may need a moment to be free.
    for _ in range(20):
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        if answer.status != 429 or '"stream"' not in body:
            return connection, answer
        answer.read()
        time.sleep(0.1)
    raise BenchError("no slot became free")


# --- proofs ---------------------------------------------------------------------------------------


def _metric(stack: Stack, name: str) -> float:
    lines = _get(f"{stack.config.admin_url}/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def _messages_to_processor(stack: Stack) -> float:
    """One for each request whose body was never sent to the processor."""
    name = "http.gateway.ext_proc.stream_msgs_sent: "
    lines = _get(f"{stack.config.envoy_admin_url}/stats?filter=ext_proc").splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


CONTENDERS = {
    "envoy": Contender("plain Envoy", _envoy),
    "minimal": Contender(
        "Envoy and the least that a Python processor can do",
        partial(_yardstick, does="pass", expect=ANSWER_TEXT),
    ),
    "show": Contender(
        "the same, shown the whole answer too: the least that storing one costs",
        partial(_yardstick, does="show", expect=ANSWER_TEXT),
    ),
    "immediate": Contender(
        "minimal, answering by itself",
        partial(_yardstick, does="immediate", expect='"chatcmpl-bench"'),
    ),
    "refuse": Contender(
        "minimal, answering at the headers: the least that a decision of Python's costs",
        partial(_yardstick, does="refuse", expect='"chatcmpl-bench"'),
    ),
    "forebay": Contender("the reference config, cache off", _forebay),
    "forebay-fill": Contender("every answer is stored", _fill),
    "forebay-hit": Contender("every answer is from the cache", _hit),
    "forebay-shed": Contender("every request is shed, its body unread", _shed),
    "litellm": Contender(f"{foreign.LITELLM}, one worker", _litellm, foreign=True),
    "vllm-router": Contender(foreign.VLLM_ROUTER, _vllm_router, foreign=True),
}


def wait_until_ready(lab: Lab, name: str, running: Running) -> None:
    """Until one request is answered as it should be."""
    until = time.monotonic() + _READY_WITHIN_S
    while True:
        outcome = lab.load(Job(running.url, running.ready_request, requests=1, connections=1))
        if not outcome.wrong:
            return
        if time.monotonic() > until:
            raise BenchError(f"{name} does not answer as it should: {outcome.wrong[0]}")
        time.sleep(0.1)
