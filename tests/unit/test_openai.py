"""The OpenAI JSON: what is read, what is refused and how it is said, what the answers look like."""

import json

import orjson
import pytest

from extproc import openai
from extproc.openai import CHAT, COMPLETIONS, ApiError, Request
from extproc.openai.request import MAX_MARKS, MAX_PROMPTS

USER = {"role": "user", "content": "hello"}


def chat(**members: object) -> Request:
    return openai.parse(CHAT, orjson.dumps({"model": "m", "messages": [USER], **members}))


def completion(prompt: object, **members: object) -> Request:
    return openai.parse(COMPLETIONS, orjson.dumps({"model": "m", "prompt": prompt, **members}))


def refusal(path: str, body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        openai.parse(path, body)
    error = caught.value
    assert (error.status, error.type, error.code) == (
        400,
        "invalid_request_error",
        "invalid_request",
    )
    return error


# What is read


def test_a_plain_chat_request() -> None:
    body = b'{"model":"small-7b","messages":[{"role":"user","content":"hello"}]}'
    request = openai.parse(CHAT, body)
    assert request == Request(
        path=CHAT,
        model="small-7b",
        model_span=(9, 19),
        stream=False,
        usage_asked=False,
        last_user_text="hello",
        prompt_tokens_estimate=2 + 4,
        max_tokens=None,
        min_tokens=0,
        choices=1,
        temperature=None,
        prompt_count=1,
        size_bytes=len(body),
        members=orjson.loads(body),
        usage_splice=None,
        limit_place=(19, 19, b',"max_tokens":'),
    )
    assert body[9:19] == b'"small-7b"'


def test_the_prompt_is_not_in_the_repr_and_can_be_let_go() -> None:
    request = chat(stream=True)
    assert "hello" not in repr(request)
    request.forget_prompt()
    assert (request.last_user_text, request.members) == ("", {})


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([USER, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "bye"}], "bye"),
        ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "q"),
        ([{"role": "system", "content": "s"}], ""),
        ([{"role": "user", "content": None}], ""),
        ([{"role": "user"}], ""),
        ([{"role": "user", "content": []}], ""),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "one"},
                        {"type": "image_url", "image_url": {"url": "data:,x"}},
                        {"type": "text", "text": "two"},
                        "three",
                    ],
                }
            ],
            "one\ntwo\nthree",
        ),
        (
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "result"},
            ],
            "hello",
        ),
    ],
)  # fmt: skip
def test_the_text_of_the_last_user_message(messages: list[object], text: str) -> None:
    assert chat(messages=messages).last_user_text == text


@pytest.mark.parametrize(
    ("members", "tokens"),
    [
        ({}, 2 + 4),  # 5 bytes
        ({"messages": [{"role": "user", "content": ""}]}, 4),
        ({"messages": [USER, USER]}, 3 + 8),  # 10 bytes
        ({"messages": [{"role": "user", "content": "日本語"}]}, 3 + 4),  # 9 bytes of UTF-8
        ({"messages": [{"role": "user", "content": "abcd", "name": "ann"}]}, 2 + 4),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "abcdé"}]}]}, 2 + 4),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            765 + 4,
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]},
            1 + 4,
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [
                {"function": {"name": "find", "arguments": '{"a":1}'}}, 1, {"function": 2}]}]},
            3 + 4,
        ),
        ({"tools": [{"a": 1}]}, 4 + 4),  # 5 + 9 bytes
        ({"tools": None}, 2 + 4),
    ],
)  # fmt: skip
def test_the_estimate_of_chat_tokens(members: dict[str, object], tokens: int) -> None:
    assert chat(**members).prompt_tokens_estimate == tokens


@pytest.mark.parametrize(
    ("prompt", "text", "tokens", "count"),
    [
        ("hello", "hello", 2, 1),
        ("", "", 1, 1),
        (["one", "three"], "one\nthree", 1 + 2, 2),
        (["one"], "one", 1, 1),
        ([1, 2, 3], "", 3, 1),
        ([[1, 2, 3], [4]], "", 4, 2),
    ],
)
def test_the_prompt_of_completions(prompt: object, text: str, tokens: int, count: int) -> None:
    request = completion(prompt)
    assert request.last_user_text == text
    assert request.prompt_tokens_estimate == tokens
    assert request.prompt_count == count


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": None}, None),
        ({"max_tokens": 2**63}, 2**63),
    ],
)
def test_the_limit_of_output_tokens(members: dict[str, object], limit: int | None) -> None:
    assert chat(**members).max_tokens == limit


def test_completions_know_only_max_tokens() -> None:
    assert completion("p", max_completion_tokens=7).max_tokens is None
    assert completion("p", max_completion_tokens=7, max_tokens=5).max_tokens == 5


@pytest.mark.parametrize(("n", "choices"), [(None, 1), (1, 1), (128, 128)])
def test_choices(n: int | None, choices: int) -> None:
    assert chat(n=n).choices == choices


@pytest.mark.parametrize(("value", "stream"), [(None, False), (False, False), (True, True)])
def test_stream(value: bool | None, stream: bool) -> None:
    assert chat(stream=value).stream is stream


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (None, False),
        ({}, False),
        ({"include_usage": None}, False),
        ({"include_usage": False}, False),
        ({"include_usage": True}, True),
        ({"x": {"include_usage": True}}, False),
    ],
)
@pytest.mark.parametrize("stream", [True, False])  # without stream it is the server's to judge
def test_usage_asked(options: object, asked: bool, stream: bool) -> None:
    assert chat(stream=stream, stream_options=options).usage_asked is asked


# What passes as it is


@pytest.mark.parametrize(
    "members",
    [
        b'"seed":123456789012345678901234567890',  # to orjson a float
        b'"seed":-99999999999999999999',
        b'"x":0.1000000000000000000000000000000001,"y":1E-400',
        b'"user":"\\u00e9\\ud83d\\ude00 \\/"',
        b'"x":{"model":"other","model":"twice","stream_options":7}',
        b'"unknown":1,"unknown":2',  # a duplicate that Forebay does not read
    ],
)
def test_other_members_survive_byte_for_byte(members: bytes) -> None:
    head, tail = b'{ "model" : "m",\t"stream":true,\r\n', b' ,"messages":[{"role":"user"}]}'
    body = head + members + tail
    request = openai.parse(CHAT, body)
    new, (start, end) = openai.with_changes(body, request)
    assert new[start:end] == b'"m"'
    assert new.endswith(members + tail)
    assert new.replace(b',"stream_options":{"include_usage":true}', b"") == body


@pytest.mark.parametrize("key", [b"mod\\u0065l", b"\\u006d\\u006f\\u0064\\u0065\\u006C"])
def test_a_key_spelled_with_escapes(key: bytes) -> None:
    body = b'{"messages":[{"role":"user"}], "%b" : "a\\"b\\\\", "x\\\\\\"":"model"}' % key
    request = openai.parse(CHAT, body)
    assert request.model == 'a"b\\'
    start, end = request.model_span
    assert body[start:end] == b'"a\\"b\\\\"'


@pytest.mark.parametrize("depth", [1, 11, 12, 13, 14, 100, 1000])
def test_spans_beside_deep_nesting(depth: int) -> None:
    deep = b'["[",{"model":' * (depth // 2) + b'"]}"' + b'},"{"]' * (depth // 2)
    body = b'{"a":%b,"model":"m","b":%b,"messages":[{"role":"user"}],"n":2,"c":%b}' % (
        deep,
        deep,
        deep,
    )
    request = openai.parse(CHAT, body)
    assert body[slice(*request.model_span)] == b'"m"'
    assert request.choices == 2


# What is refused


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "empty"),
        (b"  ", "not valid JSON"),
        (b"nonsense", "line 1, column 1"),
        (b'{"model":\n"m",}', "line 2, column 4"),
        (b'{"model":"m"} x', "column 15"),
        (b'{"model":NaN}', "column 10"),
        (b'{"model":1e999}', "column 10"),
        (b'\xef\xbb\xbf{"model":"m"}', "BOM"),
        (b'{"model":"\\ud800"}', "surrogate"),
        (b'{"model":"\xed\xa0\x80"}', "UTF-8"),
        (b'{"model":"\xff"}', "UTF-8"),
        (b'{"model":"a\nb"}', "control character"),
        (b'{"model":"m","x":' + b"[" * 1024 + b"]" * 1024 + b"}", "depth"),
        (b"[" * 400_000, "depth"),
        (b'{"a":' * 400_000, "depth"),
        (b"[]", "object"),
        (b'"model"', "object"),
        (b"null", "object"),
        (b"7", "object"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_body_that_is_no_json_object(path: str, body: bytes, where: str) -> None:
    error = refusal(path, body)
    assert where in error.message
    assert error.param is None


@pytest.mark.parametrize("cut", range(60))
@pytest.mark.parametrize("put", [b"", b"secret", b"\xff", b"\x00", b'"', b"{"])
def test_no_message_quotes_the_body(cut: int, put: bytes) -> None:
    body = b'{"model":["secret"],"messages":[{"role":"secret"}],"secret":"secret"}'
    error = refusal(CHAT, body[:cut] + put + body[cut + 1 :])
    assert "secret" not in error.message
    assert "secret" not in (error.param or "")
    assert error.__context__ is None  # orjson's error holds the whole body


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": ["m"]}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [USER, "hello"]}, "messages[1]"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [{"content": "hello"}]}, "messages[0].role"),
        ({"messages": [USER, USER, {"role": 1}]}, "messages[2].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": False}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"text": "x"}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [None]}]}, "messages[0].content"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"include_usage": "true"}}, "stream_options.include_usage"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"max_tokens": "1"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": True, "max_tokens": 1}, "max_completion_tokens"),
        ({"max_completion_tokens": 1, "max_tokens": "1"}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": True}, "n"),
        ({"n": "1"}, "n"),
    ],
)
def test_a_member_that_breaks_a_rule(members: dict[str, object], param: str) -> None:
    body = orjson.dumps({"model": "m", "messages": [USER], "stream": True, **members})
    error = refusal(CHAT, body)
    assert error.param == param
    assert param.partition(".")[2] in error.message
    assert param.partition("[")[0] in error.message or "content" in error.message


@pytest.mark.parametrize("number", [b"99999999999999999999", b"1e2"])
def test_a_limit_that_is_no_integer_of_64_bits(number: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user"}],"max_tokens":%b}' % number
    assert refusal(CHAT, body).param == "max_tokens"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_object_without_members_lacks_a_model(path: str) -> None:
    assert refusal(path, b" { } ").param == "model"


def test_each_api_needs_its_own_prompt() -> None:
    assert refusal(CHAT, b'{"model":"m","prompt":"p"}').param == "messages"
    assert refusal(COMPLETIONS, b'{"model":"m","messages":[{"role":"user"}]}').param == "prompt"


@pytest.mark.parametrize(
    "prompt",
    [None, 7, True, {}, [], [[]], [[1], []], [True], [1.5], ["a", 1], [1, [1]], [[1], "a"],
     [["a"]], [[True]], [None], [{}], [[[1]]]],
)  # fmt: skip
def test_a_prompt_of_the_wrong_type(prompt: object) -> None:
    body = orjson.dumps({"model": "m", "prompt": prompt})
    assert refusal(COMPLETIONS, body).param == "prompt"


READ = {
    "model": b'"m"',
    "messages": b'[{"role":"user"}]',
    "prompt": b'"p"',
    "stream": b"true",
    "stream_options": b'{"include_usage":true}',
    "max_tokens": b"1",
    "max_completion_tokens": b"1",
    "n": b"1",
    "tools": b'[{"x":[[[[[[[[[[[[[1]]]]]]]]]]]]]}]',
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("spelled", ["plain", "first", "last", "all"])
def test_a_key_that_is_read_may_not_come_twice(name: str, path: str, spelled: str) -> None:
    escapes = [f"\\u{ord(char):04x}" for char in name]
    key = {
        "plain": name,
        "first": escapes[0] + name[1:],
        "last": name[:-1] + escapes[-1],
        "all": "".join(escapes),
    }[spelled]
    members = [b'"%b": %b' % (n.encode(), value) for n, value in READ.items()]
    once = b'{%b, "x": {"%b": 1}}' % (b", ".join(members), key.encode())
    assert openai.parse(path, once).model == "m"
    for place in (0, len(members)):
        twice = members.copy()
        twice.insert(place, b'"%b" :%b' % (key.encode(), READ[name]))
        error = refusal(path, b"{%b}" % b",".join(twice))
        assert error.param == name
        assert f"`{name}`" in error.message


def test_include_usage_may_not_come_twice() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user"}],"stream":true,'
        b'"stream_options":{"include_usage":false,"include_usag\\u0065":true}}'
    )
    assert refusal(CHAT, body).param == "stream_options.include_usage"


def test_a_path_that_is_not_served() -> None:
    with pytest.raises(ApiError) as caught:
        openai.parse("/v1/rerank", b"{}")
    assert (caught.value.status, caught.value.code) == (404, "unknown_url")


# with_changes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"null", b'{"include_usage":true}'),
        (b"{}", b'{"include_usage":true}'),
        (b"{ }", b'{"include_usage":true }'),
        (b'{"include_usage":false}', b'{"include_usage":true}'),
        (b'{"include_usage" : null }', b'{"include_usage" : true }'),
        (b'{"include\\u005fusage":false}', b'{"include\\u005fusage":true}'),
        (
            b'{ "continuous_usage_stats":true}',
            b'{"include_usage":true, "continuous_usage_stats":true}',
        ),
        (
            b'{"x":{"include_usage":false},"include_usage":false,"y":[]}',
            b'{"x":{"include_usage":false},"include_usage":true,"y":[]}',
        ),
        (
            b'{"x":{"stream_options":{"include_usage":false}}}',
            b'{"include_usage":true,"x":{"stream_options":{"include_usage":false}}}',
        ),
    ],
)
def test_with_changes_edits_the_stream_options_there_are(before: bytes, after: bytes) -> None:
    rest = b'"messages":[{"role":"user","stream_options":{}}],"x":{"stream_options":null}'
    for text in (
        b'{"model":"m",%b,"stream":true,"stream_options":%%b}' % rest,
        b'{ "stream_options" : %%b , %b,"stream":true,"model":"m"}' % rest,
    ):
        body = text % before
        request = openai.parse(CHAT, body)
        assert not request.usage_asked
        new, (start, end) = openai.with_changes(body, request)
        assert new == text % after
        assert new[start:end] == b'"m"'
        assert openai.parse(CHAT, new).usage_asked


def test_with_changes_adds_stream_options() -> None:
    body = b'{"stream":true, "model" : "m" , "messages":[{"role":"user"}]}'
    new, span = openai.with_changes(body, openai.parse(CHAT, body))
    assert new == (
        b'{"stream":true, "model" : "m","stream_options":{"include_usage":true}'
        b' , "messages":[{"role":"user"}]}'
    )
    assert new[slice(*span)] == b'"m"'


@pytest.mark.parametrize(
    "members", [b'"stream":true,"stream_options":{"include_usage":true}', b'"n":1']
)
def test_with_changes_leaves_alone_what_needs_no_edit(members: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user"}],%b}' % members
    request = openai.parse(CHAT, body)
    assert openai.with_changes(body, request) == (body, request.model_span)


# Size: megabytes of escapes and very long lists end (pytest's time limit is the judge)


@pytest.mark.parametrize(
    "unit", ['"', "\\", '\\"', '"\\\\', "[{", "\n", "é", "\x00", "😀", '"]}, ']
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_megabytes_of_escapes(unit: str, ascii_only: bool) -> None:
    text = unit * 130_000 if "[" in unit or "]" in unit else unit * 1_000_000
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": text}], "n": 3},
        ensure_ascii=ascii_only,
    ).encode()
    request = openai.parse(CHAT, body)
    assert request.last_user_text == text
    assert request.choices == 3


@pytest.mark.parametrize("unit", [b'""', b"[]", b"{}", b"1", b'{"a":"b"}', b"[" * 20 + b"]" * 20])
def test_a_list_of_very_many_items(unit: bytes) -> None:
    items = b",".join([unit] * (10_000 if b"[[" in unit else 100_000))
    body = b'{"x":[%b],"model":"m","messages":[{"role":"user"}],"n":3}' % items
    request = openai.parse(CHAT, body)
    assert body[slice(*request.model_span)] == b'"m"'
    assert request.choices == 3


# Answers


def test_error_body() -> None:
    assert orjson.loads(openai.error_body("No.", "t", "c")) == {
        "error": {"message": "No.", "type": "t", "param": None, "code": "c"}
    }
    error = ApiError(429, "Wait.", "rate_limit_error", "overloaded", "model")
    assert orjson.loads(error.body()) == {
        "error": {
            "message": "Wait.",
            "type": "rate_limit_error",
            "param": "model",
            "code": "overloaded",
        }
    }
    assert str(error) == "Wait."


def test_models_body() -> None:
    assert orjson.loads(openai.models_body(["a", "b"], 1700000000)) == {
        "object": "list",
        "data": [
            {"id": "a", "object": "model", "created": 1700000000, "owned_by": "forebay"},
            {"id": "b", "object": "model", "created": 1700000000, "owned_by": "forebay"},
        ],
    }


def test_abort_ids() -> None:
    assert openai.abort_ids(chat(n=2), "R") == ["chatcmpl-R"]
    assert openai.abort_ids(completion("p", n=2), "R") == ["cmpl-R-0"]
    assert openai.abort_ids(completion(["p", "q", "r"]), "R") == [
        "cmpl-R-0",
        "cmpl-R-1",
        "cmpl-R-2",
    ]
    assert openai.abort_ids(completion([1, 2, 3]), "R") == ["cmpl-R-0"]


@pytest.mark.parametrize("filler", [b"[],", b"1,", b'"",', b"{},"])
def test_a_body_of_nothing_but_marks_is_refused_before_it_is_read(filler: bytes) -> None:
    body = b'{"model":"m","prompt":"a","x":[' + filler * MAX_MARKS + b"0]}"
    with pytest.raises(openai.ApiError) as refused:
        openai.parse(openai.COMPLETIONS, body)
    assert refused.value.status == 400


def test_a_long_text_is_not_refused() -> None:
    text = "A sentence, with a comma, as people write them (and code[i] = {x}). " * 100_000
    openai.parse(openai.COMPLETIONS, orjson.dumps({"model": "m", "prompt": text[:5_000_000]}))


def test_too_many_prompts_in_one_request_are_refused() -> None:
    prompts = ["a"] * MAX_PROMPTS
    openai.parse(openai.COMPLETIONS, orjson.dumps({"model": "m", "prompt": prompts}))
    with pytest.raises(openai.ApiError) as refused:
        openai.parse(openai.COMPLETIONS, orjson.dumps({"model": "m", "prompt": [*prompts, "a"]}))
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":"a",' + b",".join(b'"\\u0061%d":1' % i for i in range(1001)) + b"}",
        b'{"model":"m","prompt":"a","stream":true,"stream_options":{'
        + b",".join(b'"%d":1' % i for i in range(1001))
        + b"}}",
    ],
)
def test_an_object_of_too_many_members_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="members"):
        openai.parse(COMPLETIONS, body)


@pytest.mark.parametrize(
    "messages",
    [
        [USER] * 20_001,
        [{"role": "user", "content": ["a"] * 20_001}],
        [{"role": "user", "content": ["a"] * 101}] * 200,
        [{"role": "assistant", "tool_calls": [{}] * 20_001}],
    ],
)
def test_too_many_items_in_messages_are_refused(messages: list[object]) -> None:
    with pytest.raises(ApiError) as refused:
        chat(messages=messages)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    ("path", "members", "changed"),
    [
        (CHAT, b'"max_tokens": 99', b'"max_tokens": 7'),
        (
            CHAT,
            b'"max_completion_tokens":99,"max_tokens":5',
            b'"max_completion_tokens":7,"max_tokens":5',
        ),
        (
            CHAT,
            b'"max_completion_tokens":null,"max_tokens":50',
            b'"max_completion_tokens":null,"max_tokens":7',
        ),
        (CHAT, b'"max_tokens":null', b'"max_tokens":7'),
        (COMPLETIONS, b'"max_tokens":99', b'"max_tokens":7'),
    ],
)
def test_a_limit_is_put_where_the_one_that_counts_stands(
    path: str, members: bytes, changed: bytes
) -> None:
    rest = b'"messages":[{"role":"user","content":"hi"}],"prompt":"hi"'
    for text in (b'{"model":"m",%b,%%b}' % rest, b'{%%b,"model":"m",%b}' % rest):
        body = text % members
        new, span = openai.with_changes(body, openai.parse(path, body), most_tokens=7)
        assert new == text % changed
        assert new[slice(*span)] == b'"m"'
        assert openai.parse(path, new).max_tokens == 7


def test_a_limit_is_added_where_there_is_none_beside_the_usage_asked_for() -> None:
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    new, span = openai.with_changes(body, openai.parse(CHAT, body), most_tokens=7)
    again = openai.parse(CHAT, new)
    assert (again.max_tokens, again.usage_asked) == (7, True)
    assert new[slice(*span)] == b'"m"'
