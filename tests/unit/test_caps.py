"""Which cap holds, what of it is billed, and how much time makes how many tokens."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc import caps, openai
from extproc.cache.key import Secret, exact_key
from extproc.cache.scope import Scope
from extproc.finished import Measured
from extproc.openai import CHAT, COMPLETIONS

SECRET = Secret(b"of no importance")


def body(path: str = CHAT, **members: Any) -> bytes:
    asks = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    return json.dumps({"model": "m", **asks, **members}).encode()


def parsed(path: str = CHAT, **members: Any) -> openai.Request:
    return openai.parse(path, body(path, **members))


def measured(token_s: float, first_token_s: float = 0.0) -> Measured:
    known = Measured()
    for _ in range(30):
        known.token_s.add(token_s)
        if first_token_s:
            known.first_token_s.add(first_token_s)
    return known


limits = st.none() | st.integers(1, 60)


@given(
    asked=limits,
    tenants=limits,
    fitting=limits,
    shorter=limits,
    least=st.integers(0, 60),
    path=st.sampled_from((CHAT, COMPLETIONS)),
)
def test_the_tightest_holds_and_is_named_and_none_ever_raises_a_limit(
    asked: int | None,
    tenants: int | None,
    fitting: int | None,
    shorter: int | None,
    least: int,
    path: str,
) -> None:
    members = {"min_tokens": least} if least else {}
    if asked is not None:
        members["max_tokens"] = asked
    request = parsed(path, **members)
    if tenants is not None and least > tenants:
        with pytest.raises(openai.ApiError) as refused:
            caps.lower_to_tenants(request, tenants)
        assert refused.value.param == "min_tokens"
        return
    caps.lower_to_tenants(request, tenants)
    why = caps.lower(request, fitting=fitting, shorter=shorter)
    sent = body(path, **members)
    new, _ = openai.with_changes(sent, request, most_tokens=request.lowered_to)
    reaches = openai.parse(path, new).max_tokens
    assert reaches == request.max_tokens
    default = 16 if path == COMPLETIONS else None
    before = asked if asked is not None else default
    given = {"tenant": tenants, "deadline": fitting, "shorter": shorter}
    given = {name: cap for name, cap in given.items() if cap is not None}
    if not why:
        assert new == sent
        assert all(before is not None and before <= max(cap, least) for cap in given.values())
        return
    assert reaches == max(given[why], least)
    assert reaches is not None
    assert before is None or reaches < before
    assert reaches == max(min(given.values()), least)
    cap, most = caps.billed(request, why, fitting)
    assert cap == (0 if why == "deadline" else reaches)
    assert most == min((x for x in (asked, fitting) if x is not None), default=0)


def test_a_tenants_cap_makes_it_another_request_for_the_cache() -> None:
    def key(tenants: int | None, **members: Any) -> bytes | None:
        request = parsed(**members)
        caps.lower_to_tenants(request, tenants)
        scope, sent = Scope("public", "", ""), body(**members)
        return exact_key(SECRET, scope, "small", CHAT, sent, request.members)

    assert key(100) != key(None)
    assert key(100) != key(200)
    assert key(100, max_tokens=50) == key(None, max_tokens=50), "it does not bind"
    assert key(100, max_completion_tokens=500) == key(None, max_completion_tokens=100)


def test_what_fits_is_known_from_the_first_answer_on_and_keeps_a_margin() -> None:
    assert caps.tokens_within(10.0, Measured()) is None
    assert caps.tokens_within(10.0, measured(0.02)) == pytest.approx(450, abs=1)
    assert caps.tokens_within(10.0, measured(0.02, 1.0)) == pytest.approx(400, abs=1)
    assert caps.tokens_within(0.5, measured(0.02, 1.0)) == 1, "an answer has at least one"
    uneven = measured(0.02)
    for _ in range(10):
        uneven.token_s.add(0.04)
    assert (caps.tokens_within(10.0, uneven) or 0) < 250
