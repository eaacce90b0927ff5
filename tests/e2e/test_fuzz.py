"""Bodies that nobody would send on purpose: no crash, no 5xx of ours, no request lost.

A sample in `make test`; 10,000 in `make soak` (FOREBAY_FUZZ_EXAMPLES).
"""

import http.client
import json
import os
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.client import CHAT, Gateway
from tests.gateways import MakeGateway

EXAMPLES = int(os.environ.get("FOREBAY_FUZZ_EXAMPLES", "300"))
PATHS = [CHAT, "/v1/completions"]
KEYS = ["model", "messages", "prompt", "stream", "stream_options", "max_tokens", "n", "tools"]
KEYS += ["temperature", "max_completion_tokens", "user", "metadata", "role", "content", "\udc80"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["auto", "small-7b", "large-70b", "user", "Why?", "include_usage"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def near_misses(draw: st.DrawFn) -> bytes:
    """A good request with a few members changed, doubled or cut."""
    members: dict[str, Any] = {
        "model": "auto",
        "messages": [{"role": "user", "content": draw(st.text(max_size=30))}],
        "prompt": "a",
        "max_tokens": 1,
    }
    members |= draw(st.dictionaries(st.sampled_from(KEYS), values, max_size=2))
    # Nothing that is long by itself: an answer of a million tokens is no fault of the gateway's.
    if isinstance(members.get("n"), int):
        members["n"] = members["n"] % 3
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(members.get(name), int):
            members[name] = min(members[name], 5)
    text = json.dumps(members, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        extra = json.dumps({draw(st.sampled_from(KEYS)): draw(scalars)}).encode()
        text = text[:-1] + b"," + extra[1:]
    if draw(st.integers(0, 5)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    return text


bodies = (
    st.binary(max_size=200)
    | near_misses()
    | near_misses()
    | near_misses()
    | st.builds(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"), values)
)


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway()


def test_no_body_crashes_it_or_is_lost(gateway: Gateway) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    seen: Counter[int] = Counter()

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(path=st.sampled_from(PATHS), body=bodies)
    def send(path: str, body: bytes) -> None:
        connection.request("POST", path, body, gateway.headers)
        answer = connection.getresponse()
        said = answer.read()
        seen[answer.status] += 1
        assert answer.status in (200, 400, 403, 404, 429), (answer.status, said)
        if answer.status == 200:
            assert said
        elif answer.headers.get("x-forebay-served-by") is None:
            assert set(json.loads(said)["error"]) == {"message", "type", "param", "code"}

    before = gateway.metric("forebay_decisions_total")
    send()
    gateway.wait_until_idle()
    sent = sum(seen.values())
    assert gateway.metric("forebay_decisions_total") - before == sent >= EXAMPLES * 0.9
    assert seen[200] > sent * 0.05, seen
    assert seen[400] > sent * 0.05, seen
    time.sleep(0.5)  # lines are written ten times a second
    log = (gateway.stack.folder / "processor.log").read_text()
    assert "exchange failed" not in log
