"""Keys, the memory store, and answers that survive being read and given again."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.cache import Caches, ExactCache, Found, Query, Scope, Secret, Times, scope_of
from extproc.cache.key import exact_key
from extproc.cache.memory import MemoryStore
from extproc.cache.request_policy import cache_policy
from extproc.openai import (
    CHAT,
    COMPLETIONS,
    Answer,
    AnswerReader,
    ApiError,
    UnreadAnswer,
    parse,
)
from extproc.openai.sse import EventReader

SECRET = Secret(b"0123456789abcdef")
ACME = Scope("tenant", "acme", "")


def key(
    body: bytes, scope: Scope = ACME, pool: str = "small", path: str = CHAT, secret: Secret = SECRET
) -> bytes | None:
    return exact_key(secret, scope, pool, path, body, orjson.loads(body))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
MEMBERS = st.dictionaries(st.text(min_size=1, max_size=8), VALUES, max_size=5)


@given(members=MEMBERS)
def test_order_whitespace_and_escapes_do_not_change_the_key(members: dict[str, Any]) -> None:
    backwards = dict(reversed(members.items()))
    one = json.dumps(members, ensure_ascii=True, indent=2).encode()
    other = json.dumps(backwards, ensure_ascii=False).encode()
    if not any(len(str(n)) >= 15 for n in _numbers(members)):
        assert key(one) == key(other)


@given(members=MEMBERS, name=st.text(min_size=1, max_size=8), value=VALUES)
def test_any_other_member_changes_the_key(members: dict[str, Any], name: str, value: Any) -> None:
    changed = {**members, name: value}
    ignored = {"stream", "stream_options", "user", "metadata"}
    without = [
        orjson.dumps({k: v for k, v in m.items() if k not in ignored}, option=orjson.OPT_SORT_KEYS)
        for m in (members, changed)
    ]
    same = key(orjson.dumps(members)) == key(orjson.dumps(changed))
    if without[0] != without[1]:
        assert not same


def _numbers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in _numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in _numbers(v)]
    return [value] if type(value) is int else []


def test_scope_pool_and_path_are_in_the_key_and_cannot_run_into_each_other() -> None:
    keys = {
        key(b"{}"),
        key(b"{}", scope=Scope("tenant", "b", "")),
        key(b"{}", scope=Scope("user", "acme", "")),
        key(b"{}", scope=Scope("public", "", "")),
        key(b"{}", pool="large"),
        key(b"{}", path=COMPLETIONS),
        key(b"{}", scope=Scope("tenant", "acmes", ""), pool="mall"),
        key(b"{}", secret=Secret(b"another secret..")),
    }
    assert len(keys) == 8


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"temperature":1}', b'{"temperature":1.0}', True),
        (b'{"temperature":1e0}', b'{"temperature":1.0}', True),
        (b'{"temperature":0}', b'{"temperature":-0.0}', True),
        (b'{"top_p":0.1}', b'{"top_p":1e-1}', True),
        (b'{"max_tokens":10}', b'{"max_tokens":1e1}', True),
        (b'{"temperature":1}', b'{"temperature":1.0000001}', False),
        (b'{"temperature":1}', b'{"temperature":true}', False),
        (b'{"temperature":1}', b'{"temperature":"1"}', False),
        (b'{"seed":1e15}', b'{"seed":1000000000000000}', False),  # may be long: a miss, no harm
        # What stands deeper, or in a member that we do not know, may become text in a prompt.
        (b'{"x":1}', b'{"x":1.0}', False),
        (b'{"tools":[{"n":1}]}', b'{"tools":[{"n":1.0}]}', False),
        # Escapes are the characters; normal forms are not each other.
        (b'{"x":"\\u00e9"}', '{"x":"\u00e9"}'.encode(), True),
        (b'{"x":"\\ud83d\\ude00"}', '{"x":"\U0001f600"}'.encode(), True),
        (b'{"x":"\\/"}', b'{"x":"/"}', True),
        ('{"x":"\u00e9"}'.encode(), '{"x":"e\u0301"}'.encode(), False),
        ('{"x":"\ufb01"}'.encode(), b'{"x":"fi"}', False),
        (b'{"x":"a"}', b'{"x":"a "}', False),
        (b'{"x":null}', b"{}", False),
        (b'{"n":1}', b"{}", False),
    ],
)
def test_what_is_one_request_to_the_api(one: bytes, other: bytes, same: bool) -> None:
    assert (key(one) == key(other)) is same


def test_a_lone_surrogate_is_no_request_and_a_huge_float_has_a_key() -> None:
    with pytest.raises(ApiError):
        parse(CHAT, b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}')
    assert key(b'{"seed":1e300}') != key(b'{"seed":1e301}')


@pytest.mark.parametrize(
    ("kind", "tenant", "user", "expected"),
    [
        ("tenant", "a", "u", Scope("tenant", "a", "")),
        ("user", "a", "u", Scope("user", "a", "u")),
        ("user", "a", "", None),
        ("user", "", "u", None),
        ("tenant", "", "", None),
        ("public", "a", "u", Scope("public", "", "")),
    ],
)
def test_whose_answer_it_is(kind: Any, tenant: str, user: str, expected: Scope | None) -> None:
    assert scope_of(kind, tenant, user) == expected


@given(a=st.tuples(st.text(), st.text()), b=st.tuples(st.text(), st.text()))
def test_scopes_that_differ_are_told_apart(a: tuple[str, str], b: tuple[str, str]) -> None:
    assert (Scope("user", *a).encode() == Scope("user", *b).encode()) == (a == b)
    assert Scope("user", *a).encode() != Scope("tenant", *b).encode()


def test_numbers_that_floats_cannot_tell_apart_have_their_own_keys() -> None:
    assert key(b'{"seed":12345678901234567890}') != key(b'{"seed":12345678901234567891}')
    assert key(b'{"x":0.10000000000000000001}') != key(b'{"x":0.1}')


def answer(text: str, path: str = CHAT) -> Answer:
    body = {
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"completion_tokens": 1},
    }
    made = UnreadAnswer(path, 1, orjson.dumps(body)).read()
    assert made
    return made


@given(
    puts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3000)), max_size=60),
    max_bytes=st.integers(500, 10_000),
)
async def test_the_store_never_holds_more_than_it_may(
    puts: list[tuple[int, int]], max_bytes: int
) -> None:
    gone: list[bytes] = []
    store = MemoryStore(max_bytes, clock=lambda: 0.0, dropped=gone.append)
    for name, size in puts:
        before = len(store) + len(gone)
        kept = store.put(ACME, bytes([name]), b"0", answer("x" * size), 10, 0)
        assert len(store) + len(gone) == before + kept
        assert store.used_bytes <= max_bytes
        assert ((await store.get(ACME, bytes([name]))).entry is not None) == kept or not kept
    assert (len(store) == 0) == (store.used_bytes == 0)


async def test_the_least_recently_used_goes_first() -> None:
    store = MemoryStore(2 * (answer("a").size + 500), clock=lambda: 0.0)
    for name in (b"1", b"2"):
        store.put(ACME, name, b"0", answer("a"), 10, 0)
    assert (await store.get(ACME, b"1")).entry
    store.put(ACME, b"3", b"0", answer("c"), 10, 0)
    assert not (await store.get(ACME, b"2")).entry
    assert (await store.get(ACME, b"1")).entry
    assert store.stats().evicted == 1


async def test_an_entry_takes_another_form_when_it_is_read_and_the_sum_stays_right() -> None:
    store = MemoryStore(5000, clock=lambda: 0.0)
    raw = orjson.dumps({"padding": None, **_plain()})
    store.put(ACME, b"1", b"0", UnreadAnswer(CHAT, 1, raw), 10, 0)
    store.put(ACME, b"2", b"0", answer("a"), 10, 0)
    found = (await store.get(ACME, b"1")).entry
    assert found
    assert store.used_bytes == answer("a").size + found.answer.size + 2 * 500
    store.drop(ACME, b"1")
    store.drop(ACME, b"2")
    assert store.used_bytes == 0


async def test_a_look_up_in_memory_does_not_suspend() -> None:
    cache = _cache()
    assert _answer_with(await _ask(cache), _plain())
    asking = _ask(cache)
    with pytest.raises(StopIteration) as ended:
        asking.send(None)
    assert ended.value.value.hit


def _cache(jitter: float = 0, draw: float = 0, clock: Callable[[], float] = lambda: 0.0) -> Any:
    times = Times(ttl_s=60, stale_s=5, jitter=jitter)
    return ExactCache(MemoryStore(10_000, clock), SECRET, times, draw=lambda: draw)


async def _ask(cache: ExactCache, scope: Scope | None = ACME, **changes: Any) -> Found:
    body = b'{"model":"auto","temperature":0,"messages":[{"role":"user","content":"hi"}]}'
    asked = {"pool": "small", "model": "m", "cache_control": "", "wanted": "deterministic"}
    return await Caches(cache).look_up(
        Query(
            scope=scope,
            alike_scope=None,
            request=parse(CHAT, body),
            body=body,
            **(asked | changes),
        )
    )


def _answer_with(found: Found, body: dict[str, Any]) -> bool:
    assert found.fill
    found.fill.feed(orjson.dumps(body))
    return found.fill.end()


async def test_an_answer_is_read_by_the_first_that_asks_again() -> None:
    cache = _cache()
    assert _answer_with(await _ask(cache), _plain())
    for _ in range(2):
        again = await _ask(cache)
        assert again.hit
        assert orjson.loads(again.hit.answer.as_json("r", 7))["choices"] == _plain()["choices"]


async def test_one_that_may_not_be_given_again_is_a_miss_and_goes() -> None:
    cache = _cache()
    _answer_with(await _ask(cache), _plain(finish_reason="tool_calls"))
    assert (await _ask(cache)).result == "miss"
    assert len(cache.store) == cache.store.used_bytes == 0


@pytest.mark.parametrize(("reason", "stored"), [("stop", True), ("length", False)])
async def test_what_ended_at_a_limit_that_was_not_the_clients_is_not_stored(
    reason: str, stored: bool
) -> None:
    cache = _cache()
    found = await _ask(cache)
    assert found.fill
    found.fill.unless_cut = True
    assert _answer_with(found, _plain(finish_reason=reason)) is stored
    assert ((await _ask(cache)).result == "hit") is stored


async def test_nobody_s_request_bypasses_the_cache() -> None:
    assert (await _ask(_cache(), scope=None)).result == "bypass"


async def test_another_model_behind_the_pool_s_name_gets_no_answer_of_the_first() -> None:
    cache = _cache()
    _answer_with(await _ask(cache), _plain())
    assert (await _ask(cache, model="m2")).result == "miss"
    assert (await _ask(cache)).result == "hit"


@pytest.mark.parametrize(("draw", "ttl_s"), [(0.0, 60), (0.5, 57), (1.0, 54)])
async def test_chance_shortens_the_ttl_and_never_prolongs_it(draw: float, ttl_s: float) -> None:
    cache = _cache(jitter=0.1, draw=draw)
    _answer_with(await _ask(cache), _plain())
    found = (await _ask(cache)).hit
    assert found
    assert found.ttl_s == pytest.approx(ttl_s)


async def test_a_purge_takes_a_tenant_or_one_user_of_it() -> None:
    cache = _cache()
    ann, bob = Scope("user", "acme", "ann"), Scope("user", "acme", "bob")
    for scope in (ann, bob):
        assert _answer_with(await _ask(cache, scope), _plain())
    await cache.purge("acme", "ann")
    assert (await _ask(cache, ann)).result == "miss"
    assert (await _ask(cache, bob)).result == "hit"
    await cache.purge("acme")
    assert (await _ask(cache, bob)).result == "miss"


async def test_asked_stores_only_what_a_client_asks_for() -> None:
    cache = _cache()
    assert (await _ask(cache, wanted="asked")).result == "bypass"
    asked = {"wanted": "asked", "cache_control": "max-age=60"}
    assert _answer_with(await _ask(cache, **asked), _plain())
    assert (await _ask(cache, **asked)).result == "hit"
    assert (await _ask(cache, wanted="asked", cache_control="no-cache")).result == "bypass"


def test_a_stream_has_ended_with_its_done_wherever_it_is_cut() -> None:
    stream = _chunk({"content": "a"}, "stop") + USAGE + DONE
    for cut in range(len(stream)):
        reader = AnswerReader(CHAT, streamed=True)
        assert not reader.feed(stream[:cut])
        assert reader.feed(stream[cut:])
        assert reader.end()


@pytest.mark.parametrize(
    ("header", "temperature", "read", "store"),
    [
        ("", 0, True, True),
        ("", 0.0, True, True),
        ("", None, False, False),
        ("", 1, False, False),
        ("max-age=5", 1, True, True),
        ("no-store", 0, False, False),
        ("no-store, max-age=5", 0, False, False),
        ("NO-CACHE", 0, False, True),
        ("no-cache,max-age=5", None, False, True),
        ("max-age=abc", None, False, False),
        ("max-age=-1", 0, False, True),
        ('max-age="5", max-age', 0, False, True),
        ('max-age="5"', 1, True, True),
        ("max-age = 5", 1, True, True),
        ("no-store;", 0, False, False),
        ('no-cache="x"', 0, False, True),
        ("private, foo=bar", 0, True, True),
    ],
)
def test_what_a_request_allows(
    header: str, temperature: float | None, read: bool, store: bool
) -> None:
    policy = cache_policy(header, temperature)
    assert (policy.may_read, policy.may_store) == (read, store)


def test_the_smallest_max_age_counts() -> None:
    policy = cache_policy("max-age=60, max-age=5", None)
    assert policy.takes(5)
    assert not policy.takes(5.1)


# --- answers ----------------------------------------------------------------------------------

TEXT = st.text(max_size=30)


@given(
    texts=st.lists(TEXT, min_size=1, max_size=3),
    chat=st.booleans(),
    cuts=st.lists(st.integers(0, 5000), max_size=8),
)
def test_an_answer_survives_json_to_stream_to_json(
    texts: list[str], chat: bool, cuts: list[int]
) -> None:
    path = CHAT if chat else COMPLETIONS
    choices = [
        {"index": i, "finish_reason": "stop"}
        | ({"message": {"role": "assistant", "content": t}} if chat else {"text": t})
        for i, t in enumerate(texts)
    ]
    body = {"id": "x", "model": "m", "choices": choices, "usage": {"completion_tokens": 3}}
    count = len(texts)
    first = _read(path, [orjson.dumps(body)], streamed=False, choices=count)
    assert first
    stream = first.as_sse("r", 7, with_usage=True)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    second = _read(path, pieces, streamed=True, choices=count)
    assert second
    again = orjson.loads(second.as_json("r", 7))
    said = [c["message"]["content"] if chat else c["text"] for c in again["choices"]]
    assert said == texts
    assert again["usage"] == {"completion_tokens": 3}
    assert again["id"] == ("chatcmpl-r" if chat else "cmpl-r")


def _read(
    path: str,
    pieces: list[bytes],
    *,
    streamed: bool,
    choices: int = 1,
    max_bytes: int = 10**6,
) -> Answer | None:
    reader = AnswerReader(path, streamed=streamed, choices=choices, max_bytes=max_bytes)
    for piece in pieces:
        reader.feed(piece)
    answer = reader.end()
    return answer.read() if isinstance(answer, UnreadAnswer) else answer


def _plain(**changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "a", "tool_calls": [], "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {"model": "m", "choices": [choice | changes], "usage": {"completion_tokens": 1}}


def test_a_plain_answer_is_stored() -> None:
    assert _read(CHAT, [orjson.dumps(_plain())], streamed=False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        orjson.dumps({"error": {"message": "no"}}),
        orjson.dumps(_plain() | {"error": "x"}),
        orjson.dumps(_plain() | {"choices": []}),
        orjson.dumps(_plain() | {"usage": None}),
        orjson.dumps(_plain() | {"model": None}),
        orjson.dumps(_plain(finish_reason="abort")),
        orjson.dumps(_plain(finish_reason="tool_calls")),
        orjson.dumps(_plain(finish_reason=None)),
        orjson.dumps(_plain(logprobs={"content": [1]})),
        orjson.dumps(_plain(index=1)),
        orjson.dumps(_plain(index=None)),
        orjson.dumps(_plain(token_ids=[1, 2])),
        orjson.dumps(_plain(stop_reason="###")),
        orjson.dumps(_plain() | {"prompt_token_ids": [1]}),
        orjson.dumps(_plain() | {"choices": _plain()["choices"] * 2}),
        orjson.dumps(_plain(message={"role": "assistant", "content": ["a"]})),
        orjson.dumps(_plain(message={"role": "assistant", "content": 5})),
        orjson.dumps(_plain(message={"role": "assistant", "tool_calls": [{"id": "1"}]})),
        orjson.dumps(_plain(message={"role": "assistant", "content": "a", "audio": {"id": "1"}})),
    ],
)
def test_what_is_not_whole_and_plain_is_not_stored(body: bytes) -> None:
    assert _read(CHAT, [body], streamed=False) is None


def _chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + orjson.dumps({"model": "m", "choices": [choice]}) + b"\n\n"


USAGE = b'data: {"model":"m","choices":[],"usage":{"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "stream",
    [
        _chunk({"content": "a"}) + USAGE + DONE,  # no finish reason
        _chunk({"content": "a"}, "stop") + USAGE,  # no [DONE]
        _chunk({"content": "a"}, "stop") + DONE,  # no usage
        _chunk({"content": "a"}, "abort") + USAGE + DONE,
        _chunk({"content": "a"}, "stop") + b'data: {"error":{"code":500}}\n\n' + USAGE + DONE,
        _chunk({"tool_calls": [{"index": 0}]}) + _chunk({}, "tool_calls") + USAGE + DONE,
        _chunk({}, "stop") + _chunk({"content": "late"}) + USAGE + DONE,
        _chunk({"content": "a"}, "stop").replace(b'"index":0', b'"index":1') + USAGE + DONE,
        _chunk({"content": "a"}, "stop").replace(b'"index":0', b'"index":0,"token_ids":[1]')
        + USAGE
        + DONE,
        b"data: nonsense\n\n" + DONE,
        DONE,
        b"",
    ],
)
def test_a_stream_that_is_not_whole_and_plain_is_not_stored(stream: bytes) -> None:
    assert _read(CHAT, [stream], streamed=True) is None
    good = _chunk({"role": "assistant", "content": ""}) + _chunk({"content": "a"}, "stop")
    assert _read(CHAT, [good + b": comment\n\n" + USAGE + DONE], streamed=True)


def test_an_answer_above_the_limit_is_not_held() -> None:
    body = orjson.dumps(_plain(message={"role": "assistant", "content": "x" * 1000}))
    assert _read(CHAT, [body], streamed=False, max_bytes=500) is None


@given(
    data=st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=10),
        max_size=6,
    ),
    newline=st.sampled_from(["\n", "\r\n"]),
    cuts=st.lists(st.integers(0, 300), max_size=10),
)
def test_events_are_read_at_every_split(data: list[str], newline: str, cuts: list[int]) -> None:
    stream = "".join(f": hi{newline}event: x{newline}data: {d}{newline}{newline}" for d in data)
    raw = stream.encode()
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    reader = EventReader()
    got = [e for a, b in itertools.pairwise(places) for e in reader.feed(raw[a:b])]
    assert got + reader.end() == [d.encode() for d in data]


def test_several_data_lines_are_one_event_and_a_last_one_needs_no_blank_line() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\ndata:b\n\ndata: c") == [b"a\nb"]
    assert reader.end() == [b"c"]


def test_a_body_that_nests_too_deep_has_no_key() -> None:
    assert key(b'{"x":' + b"[" * 300 + b"]" * 300 + b"}") is None
