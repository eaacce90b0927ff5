"""Whatever JSON a client writes, however it spells it: the spans are right, and parse is safe."""

from random import Random

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc import openai
from extproc.openai import CHAT, COMPLETIONS, ApiError
from extproc.openai.spans import (
    READ_OF_REQUEST,
    quick_spans,
    value_spans,
    without_quote_escapes,
)
from tests.sampling import examples

KEYS = ["model", "stream_options", "include_usage", "messages", "stream", "n", "", "a\\", '"}']
NASTY = st.text(st.sampled_from('"\\{}[],:/ \n\t\x00\x7fuabé日😀n'), max_size=12)
STRINGS = NASTY | st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(KEYS)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | STRINGS
)


def nest(value: object, kinds: list[bool]) -> object:
    for kind in kinds:
        value = [value] if kind else {"model": value}
    return value


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(STRINGS, inner, max_size=4)
        | st.builds(nest, inner, st.lists(st.booleans(), max_size=16))
    ),
    max_leaves=25,
)
MEMBERS = st.dictionaries(STRINGS.filter(lambda key: key not in READ), VALUES, max_size=5)
# By a seed: hundreds of coins that Hypothesis throws itself take several times as long.
COINS = st.integers(0, 2**32).map(Random)
READ = {"model", "messages", "stream", "stream_options", "n", "max_tokens"}
PARTS = st.dictionaries(STRINGS, VALUES, max_size=2).map(lambda part: {"type": "text", **part})
MESSAGES = st.lists(
    st.builds(
        lambda extra, role, content: {**extra, "role": role, "content": content},
        st.dictionaries(STRINGS, VALUES, max_size=2),
        STRINGS | st.just("user"),
        st.none() | STRINGS | st.lists(PARTS, max_size=3),
    ),
    min_size=1,
    max_size=3,
)
OPTIONS = st.none() | st.builds(
    lambda extra, usage: {**extra, **usage},
    st.dictionaries(STRINGS.filter(lambda key: key != "include_usage"), VALUES, max_size=3),
    st.sampled_from([{}, {"include_usage": False}, {"include_usage": None}]),
)


@st.composite
def objects(draw: st.DrawFn) -> dict[str, object]:
    """What is valid in a streamed chat request without usage, its members in any order."""
    members = draw(MEMBERS)
    members["model"] = draw(STRINGS.filter(bool))
    members["messages"] = draw(MESSAGES)
    members["stream"] = True
    if draw(st.booleans()):
        members["stream_options"] = draw(OPTIONS)
    if draw(st.booleans()):
        members["max_tokens"] = draw(st.none() | st.integers(1, 99))
    return dict(draw(st.permutations(list(members.items()))))


def spell(value: object, random: Random) -> str:
    """JSON text of the value with whitespace and escapes as a coin decides; half of the texts
    have no \\u where none is needed, as most of what clients send."""
    plain = random.choice([0.8, 1.0])

    def space() -> str:
        return random.choice(["", "", "", " ", "\n", "\t \r\n"])

    def char(c: str) -> str:
        short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "/": "\\/"}
        coin = random.random()
        if c in short and coin < 0.5:
            return short[c]
        if c in short and coin < plain:
            return short[c]
        if coin < plain and c not in '"\\' and ord(c) >= 32:
            return c
        units = c.encode("utf-16-be")
        form = random.choice(["\\u%04x", "\\u%04X"])
        return "".join(
            form % int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)
        )

    def string(text: str) -> str:
        return '"' + "".join(map(char, text)) + '"'

    def put(value: object) -> str:
        if isinstance(value, str):
            return string(value)
        if isinstance(value, list):
            items = [space() + put(item) + space() for item in value]
            return "[" + (",".join(items) or space()) + "]"
        if isinstance(value, dict):
            items = [
                space() + string(key) + space() + ":" + space() + put(item) + space()
                for key, item in value.items()
            ]
            return "{" + (",".join(items) or space()) + "}"
        return orjson.dumps(value).decode()

    return space() + put(value) + space()


@st.composite
def bodies(draw: st.DrawFn) -> tuple[dict[str, object], bytes]:
    value = draw(objects())
    return value, spell(value, draw(COINS)).encode()


@settings(deadline=None, max_examples=examples(80))
@given(bodies(), STRINGS)
def test_the_model_span_is_the_model(case: tuple[dict[str, object], bytes], other: str) -> None:
    value, body = case
    assert orjson.loads(body) == value
    request = openai.parse(CHAT, body)
    start, end = request.model_span
    assert orjson.loads(body[start:end]) == value["model"] == request.model
    changed = body[:start] + orjson.dumps(other) + body[end:]
    assert orjson.loads(changed) == {**value, "model": other}
    assert list(orjson.loads(changed)) == list(value)


@settings(deadline=None, max_examples=200)
@given(bodies())
def test_a_limit_is_put_where_the_clients_own_stands(case: tuple[dict[str, object], bytes]) -> None:
    value, body = case
    request = openai.parse(CHAT, body)
    assert request.max_tokens == value.get("max_tokens")
    new, _ = openai.with_changes(body, request, most_tokens=7)
    assert orjson.loads(new)["max_tokens"] == 7
    assert new.count(b"max_tokens") == body.count(b"max_tokens") + ("max_tokens" not in value)


QUICK = st.sampled_from(["model", "max_tokens", "n", "x", 'a"model', "\\"])


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(
        QUICK, QUICK | st.integers(0, 9) | st.dictionaries(QUICK, QUICK, max_size=2), max_size=4
    )
)
def test_quick_spans_are_those_that_a_look_at_every_member_finds(value: dict[str, object]) -> None:
    body = orjson.dumps(value)
    quick = quick_spans(body, value)
    if quick is not None:
        slow = value_spans(body, without_quote_escapes(body), 1, READ_OF_REQUEST)
        assert quick == {name: slow[name] for name in slow if name != "n"}


def common(a: bytes, b: bytes) -> int:
    """How many bytes at the beginning are the same."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@settings(deadline=None, max_examples=examples(80))
@given(bodies())
def test_with_changes_changes_stream_options_alone(case: tuple[dict[str, object], bytes]) -> None:
    value, body = case
    request = openai.parse(CHAT, body)
    new, (start, end) = openai.with_changes(body, request)
    options = value.get("stream_options")
    options = options if isinstance(options, dict) else {}
    assert orjson.loads(new) == {**value, "stream_options": {**options, "include_usage": True}}
    assert new[start:end] == body[slice(*request.model_span)]
    again = openai.parse(CHAT, new)
    assert again.usage_asked
    assert again.model_span == (start, end)
    # All that went is a value (of which "false" keeps its e); the rest of the body is there.
    head = common(body, new)
    tail = common(body[head:][::-1], new[head:][::-1])
    assert body[head : len(body) - tail] in (b"", b"null", b"fals")


@settings(deadline=None, max_examples=examples(50))
@given(bodies(), COINS, st.data())
def test_a_second_spelling_of_a_key_is_refused(
    case: tuple[dict[str, object], bytes], random: Random, data: st.DataObject
) -> None:
    value, body = case
    name = data.draw(st.sampled_from(sorted(READ & value.keys())))
    last = body.rindex(b"}")
    member = spell(name, random).strip() + ":" + spell(value[name], random)
    with pytest.raises(ApiError) as caught:
        openai.parse(CHAT, body[:last] + b"," + member.encode() + body[last:])
    assert caught.value.param == name


PATHS = st.sampled_from([CHAT, COMPLETIONS])


@settings(deadline=None, max_examples=examples(50))
@given(PATHS, st.binary() | VALUES.map(orjson.dumps))
@example(CHAT, b'{"model":"\xf0\x9f')
def test_any_bytes_are_a_request_or_an_api_error(path: str, body: bytes) -> None:
    try:
        openai.parse(path, body)
    except ApiError as error:
        assert error.status == 400
        assert orjson.loads(error.body())["error"]["code"] == "invalid_request"


@settings(deadline=None, max_examples=examples(80))
@given(PATHS, bodies(), st.data())
def test_a_damaged_request_is_a_request_or_an_api_error(
    path: str, case: tuple[dict[str, object], bytes], data: st.DataObject
) -> None:
    _, body = case
    at = data.draw(st.integers(0, len(body)))
    upto = data.draw(st.integers(at, min(len(body), at + 3)))
    damaged = body[:at] + data.draw(st.binary(max_size=3)) + body[upto:]
    try:
        request = openai.parse(path, damaged)
    except ApiError:
        return
    assert orjson.loads(damaged[slice(*request.model_span)]) == request.model


JUNK = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ["model", "messages", "prompt", "stream", "stream_options", "max_tokens", "n", "tools"],
        VALUES,
    ),
)


@settings(deadline=None, max_examples=examples(80))
@given(PATHS, JUNK, st.booleans())
def test_any_types_are_a_request_or_an_api_error(
    path: str, value: dict[str, object], valid_base: bool
) -> None:
    base = {"model": "m", "messages": [{"role": "user"}], "prompt": "p"} if valid_base else {}
    body = orjson.dumps({**base, **value})
    try:
        request = openai.parse(path, body)
    except ApiError as error:
        assert error.status == 400
    else:
        assert request.prompt_tokens_estimate >= 1
        assert request.prompt_count >= 1
