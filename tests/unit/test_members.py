"""What of a body only vLLM is told: found, cut by span, and never cut where it matters."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.openai import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    NOTHING,
    ApiError,
    OwnMembers,
    moved,
    own_members,
    parse,
    with_changes,
)
from extproc.openai.members import CONTRACT, HINTS, OURS

MESSAGES = [{"role": "user", "content": 'a "priority": 1, \\ { [ 😀'}]


def found(body: bytes, path: str = CHAT, *, for_others: bool = True) -> OwnMembers:
    return own_members(parse(path, body), body, for_others=for_others)


def cut(body: bytes, spans: tuple[tuple[int, int], ...]) -> bytes:
    for start, end in reversed(spans):
        body = body[:start] + body[end:]
    return body


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **more}).encode()


def test_a_body_without_such_members_costs_one_look() -> None:
    assert found(chat(temperature=0, x={"priority": 1})) is NOTHING
    assert found(chat(top_k=1), for_others=False) is NOTHING


def test_ours_are_cut_for_all_and_hints_for_others_only() -> None:
    body = chat(priority=3, top_k=1, cache_salt="s", request_id="r", min_p=0.5)
    own = found(body)
    assert own.salt == "s"
    assert own.contract == ""
    assert json.loads(cut(body, own.cuts)) == json.loads(chat(top_k=1, min_p=0.5))
    assert json.loads(cut(body, own.other_cuts)) == json.loads(chat())


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"priority":1,"model":"m",%b}', b'{"model":"m",%b}'),
        (b'{ "priority" : 1 ,\n "model":"m",%b}', b'{ "model":"m",%b}'),
        (b'{"model":"m" , "priority":1, %b }', b'{"model":"m", %b }'),
        (b'{"model":"m",%b, "priority":[1,{"a":"]"}] }', b'{"model":"m",%b }'),
        (b'{"priority":1,"request_id":"}","model":"m","cache_salt":null,%b}', b'{"model":"m",%b}'),
        (b'{"pri\\u006frity":"\\"","model":"m",%b}', b'{"model":"m",%b}'),
    ],
)
def test_a_member_goes_with_one_comma(body: bytes, left: bytes) -> None:
    messages = b'"messages":[{"role":"user","content":"Hi"}]'
    asked = body % messages
    assert cut(asked, found(asked).cuts) == left % messages


@pytest.mark.parametrize("name", sorted(OURS))
def test_one_of_ours_that_is_there_twice_is_refused(name: str) -> None:
    body = chat(**{name: "1"})[:-1] + b',"%b":2}' % name.encode()
    with pytest.raises(ApiError) as refused:
        found(body, for_others=False)
    assert refused.value.param == name


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_where_a_server_fetches_caches_from_is_for_no_client_to_say(name: str) -> None:
    told = {"do_remote_prefill": True, "remote_host": "10.0.0.9", "remote_block_ids": [1]}
    for for_others in (True, False):
        body = chat(**{name: told})
        assert json.loads(cut(body, found(body, for_others=for_others).cuts)) == json.loads(chat())


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_nor_among_what_custom_code_wants_to_know(name: str) -> None:
    for for_others in (True, False):
        with pytest.raises(ApiError) as refused:
            found(chat(vllm_xargs={"ngram_size": 3, name: "x"}), for_others=for_others)
        assert (refused.value.status, refused.value.param) == (400, f"vllm_xargs.{name}")
    assert found(chat(vllm_xargs={"ngram_size": 3}), for_others=False) is NOTHING
    assert found(chat(vllm_xargs=name), for_others=False) is NOTHING  # for the server to judge


@pytest.mark.parametrize("salt", [1, "", ["x"], True])
def test_a_salt_that_is_none_is_refused(salt: object) -> None:
    with pytest.raises(ApiError) as refused:
        found(chat(cache_salt=salt), for_others=False)
    assert (refused.value.status, refused.value.param) == (400, "cache_salt")


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_what_changes_the_answer_is_named_and_its_idle_value_is_cut(name: str) -> None:
    idle = CONTRACT[name]
    for value in (None, idle):
        body = chat(**{name: value})
        own = found(body)
        assert own.contract == ""
        assert json.loads(cut(body, own.other_cuts)) == json.loads(chat())
        assert own.cuts == ()
    for value in ({"x": 1}, "x", 7, not idle):
        if value != idle:
            assert found(chat(**{name: value})).contract == name
    assert found(chat(**{name: {"x": 1}}), for_others=False) is NOTHING


def test_a_zero_is_no_false() -> None:
    assert found(chat(prompt_logprobs=0)).contract == "prompt_logprobs"
    assert found(chat(ignore_eos=0)).contract == "ignore_eos"
    assert found(chat(min_tokens=False)).contract == "min_tokens"


def test_echo_is_vllms_in_a_chat_and_openais_in_a_completion() -> None:
    assert found(chat(echo=True)).contract == "echo"
    body = b'{"model":"m","prompt":"x","echo":true}'
    assert found(body, COMPLETIONS) == OwnMembers()


def test_how_a_vector_is_written_is_for_vllm_to_obey_or_for_nobody() -> None:
    body = b'{"model":"m","input":"x","encoding_format":"base64","endianness":"%b"}'
    assert found(body % b"big", EMBEDDINGS).contract == "endianness"
    own = found(body % b"native", EMBEDDINGS)
    assert own.contract == ""
    left = cut(body % b"native", own.other_cuts)
    assert left == b'{"model":"m","input":"x","encoding_format":"base64"}'


def test_usage_with_every_chunk_is_vllms_alone() -> None:
    asked = chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert found(asked).contract == "stream_options.continuous_usage_stats"
    assert found(chat(stream=True, stream_options={"include_usage": True})) == OwnMembers()


NAMES = st.sampled_from(
    [*sorted(OURS), "top_k", "min_p", "skip_special_tokens", "a", "b", "model2"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SPACE = st.text(" \n\t", max_size=2)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A chat request with these members in any order and with any white space."""
    members = draw(st.dictionaries(NAMES, VALUES, max_size=8))
    members.pop("cache_salt", None)
    if draw(st.booleans()):
        members["cache_salt"] = draw(st.text(min_size=1, max_size=5).filter(str.isascii))
    members |= {"model": "m", "messages": MESSAGES, "stream": draw(st.booleans())}
    if draw(st.booleans()):
        members["stream_options"] = {"x": 1} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        members["max_tokens"] = 100
    order = draw(st.permutations(sorted(members)))
    ascii_only = draw(st.booleans())
    pairs = []
    for name in order:
        key = json.dumps(name)
        if draw(st.booleans()):
            key = f'"\\u{ord(name[0]):04x}{name[1:]}"'
        value = json.dumps(members[name], ensure_ascii=ascii_only)
        pairs.append(f"{draw(SPACE)}{key}{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}")
    return ("{" + ",".join(pairs) + "}").encode("utf-8", "surrogatepass")


@settings(deadline=None)  # a machine may be busy
@given(body=bodies(), most_tokens=st.none() | st.just(7))
def test_after_every_change_the_cuts_leave_all_else(body: bytes, most_tokens: int | None) -> None:
    try:
        request = parse(CHAT, body)
    except ApiError:  # numbers and surrogates that orjson does not take
        return
    own = own_members(request, body, for_others=True)
    changed, (start, end) = with_changes(body, request, most_tokens=most_tokens)
    assert orjson.loads(changed[start:end]) == "m"
    whole = orjson.loads(changed)
    for spans, names in ((own.cuts, OURS), (own.other_cuts, OURS | HINTS)):
        there = moved(spans, request, most_tokens)
        assert not any(a < end and start < b for a, b in there)
        left = cut(changed, there)
        assert orjson.loads(left) == {k: v for k, v in whole.items() if k not in names}
        for a, b in there:  # what goes is members alone: it is a prefix or a suffix with a comma
            gone = changed[a:b].strip(b" \n\t")
            assert gone.startswith(b",") or gone.endswith(b",")
