"""The exchanges of the soak: what a client asks for, how it behaves, and what it may be answered.

`make` draws one, the same for the same seed; `judge` names how it ended or raises Wrong.
"""

import json
import random
from dataclasses import dataclass
from typing import Any

from tests.e2e.client import CHAT, chat
from tests.e2e.soak.times import Times
from tests.e2e.soak.wire import Got, Leave, Request

COMPLETIONS = "/v1/completions"
ACME, NIGHTLY = "sk-demo-acme", "sk-demo-nightly"
# Of kinds, so many in a hundred.
_KINDS = {
    "plain": 33,
    "cacheable": 13,
    "choices": 8,
    "prompts": 3,
    "long": 15,
    "leaves": 20,
    "leaves mid-body": 3,
    "reads late": 3,
    "bad": 5,
}
_STREAMED, _HTTP2, _BATCH, _OTHER_TENANT, _SLOW_BODY = 0.5, 0.25, 0.12, 0.25, 0.05
_LONG_TOKENS = 1000  # far beyond the deadline
# What a good request may be answered; 500 only by a server.
_STATUSES = frozenset({200, 429, 500, 503, 504})


class Wrong(AssertionError):
    """An answer that nobody may get."""


@dataclass(frozen=True)
class Exchange:
    kind: str
    request: Request
    statuses: frozenset[int] = _STATUSES
    stream: bool = False
    answers: int = 1
    """Choices of all prompts together."""

    @property
    def may_be_stopped(self) -> bool:
        headers = self.request.headers
        return "x-request-class" in headers or headers.get("authorization", "").endswith(NIGHTLY)


def make(draw: random.Random) -> Exchange:
    kind = draw.choices([*_KINDS], [*_KINDS.values()])[0]
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {NIGHTLY if draw.random() < _OTHER_TENANT else ACME}",
    }
    if draw.random() < _BATCH:
        headers["x-request-class"] = "batch"
    http2 = draw.random() < _HTTP2
    if kind == "bad":
        return _bad(draw, headers, http2)
    stream = draw.random() < _STREAMED
    path, body, answers = CHAT, chat(_text(draw)), 1
    body["max_tokens"] = draw.randint(1, 30)
    if kind == "cacheable":
        body |= chat(f"Fact {draw.randrange(12)}?", temperature=0, max_tokens=4)
    elif kind == "choices":
        body["n"] = answers = draw.randint(2, 5)
    elif kind == "prompts":
        answers = draw.randint(1, 3)
        path, body = COMPLETIONS, body | {"prompt": ["Once upon a time"] * answers}
        del body["messages"]
    elif kind == "long" or (kind == "leaves" and draw.random() < 0.5):
        body["max_tokens"] = _LONG_TOKENS
    if draw.random() < 0.1:
        body["model"] = draw.choice(["small-7b", "large-70b"])
    if stream:
        body["stream"] = True
        if draw.random() < 0.3:
            body["stream_options"] = {"include_usage": True}
    late_s = draw.uniform(0.2, 3.0) if kind == "reads late" else 0.0
    request = Request(
        path,
        headers,
        json.dumps(body).encode(),
        http2=http2 or bool(late_s),
        pause_s=draw.uniform(0, 0.5) if draw.random() < _SLOW_BODY else 0.0,
        reads_after_s=late_s,
        leave=_leave(draw, kind),
    )
    return Exchange(kind, request, stream=stream, answers=answers)


def _text(draw: random.Random) -> str:
    """The rules send the second kind to the large pool."""
    return draw.choice(["Tell me a story", "Explain why"]) + " again" * draw.randrange(20)


def _leave(draw: random.Random, kind: str) -> Leave:
    by_reset = draw.random() < 0.5
    if kind == "leaves mid-body":
        return Leave(mid_body=True, by_reset=by_reset)
    if kind == "leaves":
        pieces = draw.randint(1, 5) if draw.random() < 0.4 else None
        most_s = draw.choice([0.3, 1.5])  # soon, it may still be in the queue
        return Leave(after_s=draw.uniform(0, most_s), after_pieces=pieces, by_reset=by_reset)
    if kind == "reads late" and draw.random() < 0.3:
        return Leave(after_s=draw.uniform(0, 3), by_reset=by_reset)
    return Leave(by_reset=False)


def _bad(draw: random.Random, headers: dict[str, str], http2: bool) -> Exchange:
    good = json.dumps(chat(max_tokens=1)).encode()
    method, path, body, wanted = draw.choice(
        [
            ("POST", CHAT, b"{", 400),
            ("POST", CHAT, b"[]", 400),
            ("POST", CHAT, b"\xff\xfe{}", 400),
            ("POST", CHAT, b"", 400),
            ("POST", CHAT, good[:-1] + b', "model": "auto"}', 400),
            ("POST", CHAT, json.dumps(chat(n=0)).encode(), 400),
            ("POST", CHAT, json.dumps(chat(temperature="hot")).encode(), 400),
            ("POST", CHAT, json.dumps(chat(model="none")).encode(), 404),
            ("POST", "/v1/nothing", good, 404),
            ("PUT", CHAT, good, 405),
            ("POST", CHAT, good, 401),
            ("POST", CHAT, good, 415),
        ]
    )
    if wanted == 401:
        headers["authorization"] = "Bearer sk-wrong"
    if wanted == 415:
        headers["content-encoding"] = "gzip"
    request = Request(path, headers, body, method=method, http2=http2)
    return Exchange("bad", request, statuses=frozenset({wanted, 429, 503, 504}))


# --- the answer -----------------------------------------------------------------------------------


def judge(
    exchange: Exchange, got: Got, began: float, ended: float, cut_s: float, times: Times
) -> str:
    """How it ended, in a few words. `cut_s`: deadline + grace."""
    if got.end == "left":
        if exchange.kind == "leaves mid-body":
            return "left: mid-body"
        return "left: unanswered" if not got.status else "left: mid-answer"
    if got.end == "cut":
        if exchange.request.pause_s and not got.status:
            return "cut: answered before its body was whole"
        if exchange.kind == "reads late" and got.status == 429:
            # Envoy ends an answer to a request that was not whole yet without waiting for a window.
            return "cut: shed while it did not read"
        if ended - began < cut_s - 0.1 and not times.may_be_cut(began, ended):
            raise Wrong(f"cut after {ended - began:.2f} s, though nothing had failed")
        return "cut: after a head" if got.status else "cut: before a head"
    if got.status not in exchange.statuses:
        raise Wrong(f"status {got.status}: {got.body[:300]!r}")
    if got.status != 200:
        return _error(got, began, ended, cut_s, times)
    words = _stream(exchange, got) if exchange.stream else _whole(exchange, got)
    if "; hit" in got.headers.get("cache-status", ""):
        return "200: from the cache"
    return f"200: {words}"


def _error(got: Got, began: float, ended: float, cut_s: float, times: Times) -> str:
    if got.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise Wrong(f"an error page of {got.headers.get('content-type')}: {got.body[:300]!r}")
    code = _checked_error(_json(got.body))["code"]
    by_server = isinstance(code, int)
    if got.status == 500 and not by_server:
        raise Wrong(f"a 500 of ours: {got.body[:300]!r}")
    if got.status == 429 and not by_server and not 1 <= int(got.headers["retry-after"]) <= 60:
        raise Wrong(f"429 with retry-after: {got.headers['retry-after']}")
    if code == "gateway_unavailable" and not times.processor_was_gone(began, ended):
        raise Wrong("gateway_unavailable, though the processor was there")
    if code == "upstream_timeout" and ended - began < cut_s - 0.1:
        raise Wrong(f"upstream_timeout after {ended - began:.2f} s")
    return f"{got.status}: {'of the server' if by_server else code}"


def _whole(exchange: Exchange, got: Got) -> str:
    answer = _json(got.body)
    reasons = {choice["index"]: choice["finish_reason"] for choice in answer["choices"]}
    if sorted(reasons) != [*range(exchange.answers)] or not answer["usage"]:
        raise Wrong(f"not the answer that was asked for: {got.body[:300]!r}")
    return _ended(set(reasons.values()), "json")


def _stream(exchange: Exchange, got: Got) -> str:
    blocks = got.body.decode().split("\n\n")
    if blocks[-2:] != ["data: [DONE]", ""]:
        raise Wrong(f"a stream that ends with {got.body[-300:]!r}")
    events = [_json(block.removeprefix("data: ").encode()) for block in blocks[:-2]]
    if events and "error" in events[-1]:
        _checked_error(events[-1])
        return "error event"
    reasons: dict[int, str] = {}
    spoke = set[int]()
    incomplete = False
    for event in events:
        for choice in event["choices"]:
            if choice.get("text") or choice.get("delta", {}).get("content"):
                spoke.add(choice["index"])
            if choice["finish_reason"] is not None:
                if choice["index"] in reasons:
                    raise Wrong(f"choice {choice['index']} ends twice")
                reasons[choice["index"]] = choice["finish_reason"]
        incomplete |= "forebay" in event
    if not reasons and exchange.may_be_stopped:
        return "stream, stopped before its first token"
    # A choice that is stopped before its first token is given no reason.
    needed = spoke if exchange.may_be_stopped and "abort" in reasons.values() else None
    if sorted(reasons) != [*range(exchange.answers)] and needed != set(reasons):
        raise Wrong(f"of {exchange.answers} choices these ended: {reasons}")
    usage_asked = b'"stream_options"' in exchange.request.body
    if usage_asked != any(event.get("usage") for event in events):
        raise Wrong(f"usage, asked for: {usage_asked}, in {got.body[-300:]!r}")
    return "stream, deadline (guard)" if incomplete else _ended(set(reasons.values()), "stream")


def _ended(reasons: set[str], shape: str) -> str:
    if not reasons <= {"stop", "length", "abort"}:
        raise Wrong(f"finish reasons {reasons}")
    return f"{shape}, deadline" if "abort" in reasons else shape


def _checked_error(body: Any) -> dict[str, Any]:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"}:
        raise Wrong(f"not an error as OpenAI's: {body}")
    return error


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise Wrong(f"not JSON: {data[:300]!r}") from None
