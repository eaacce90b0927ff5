"""What is asked of servers again, and what of their answers is read."""

import json
from typing import Any

import pytest

from extproc.openai import CHAT, asked_again, is_plain, parse, plain_chat, said


def request(**more: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": "Hi"}], **more}


def again(most: int = 100, **more: Any) -> dict[str, Any]:
    return json.loads(asked_again(request(**more), "m", most))


def test_all_that_changes_an_answer_stays_and_who_asks_does_not() -> None:
    extra = {"top_k": 3, "response_format": {"type": "json_object"}, "seed": 1}
    got = again(user="bob", metadata={"a": "b"}, stream=True, n=1, priority=4, **extra)
    assert got == {**request(), **extra, "model": "m", "stream": False, "max_tokens": 100}


def test_what_no_server_gets_from_a_client_it_does_not_get_by_a_sample() -> None:
    given = {"priority": -9, "cache_salt": "s", "request_id": "r"}
    assert again(**given) == again()


def test_a_sample_has_the_priority_that_the_policy_says() -> None:
    got = json.loads(asked_again(request(priority=-9), "m", 100, priority=10_000))
    assert got == again() | {"priority": 10_000}


def test_another_server_is_told_nothing_of_vllms() -> None:
    members = request(top_k=1, min_tokens=0, temperature=0)
    got = json.loads(asked_again(members, "m", 100, is_vllm=False))
    assert got == json.loads(asked_again(request(temperature=0), "m", 100))


def test_what_nests_deeper_than_can_be_written_is_not_plain() -> None:
    body = json.dumps(request()).encode()[:-1] + b',"x":' + b"[" * 300 + b"]" * 300 + b"}"
    assert not is_plain(parse(CHAT, body))


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": 700}, {"max_tokens": 100}),
        ({"max_completion_tokens": 7}, {"max_completion_tokens": 7}),
        ({"max_completion_tokens": 700, "max_tokens": 9}, {"max_completion_tokens": 9}),
        ({"max_tokens": None}, {"max_tokens": 100}),
    ],
)
def test_a_limit_is_never_raised(given: dict[str, Any], limit: dict[str, int]) -> None:
    got = again(**given)
    assert {name: got[name] for name in got if name.startswith("max")} == limit


def test_plain_is_what_is_text_alone() -> None:
    def plain(**more: Any) -> bool:
        return is_plain(parse(CHAT, json.dumps(request(**more)).encode()))

    assert plain()
    assert plain(tools=[], logprobs=False, functions=None)
    assert not plain(modalities=["audio"])
    assert not plain(messages=[{"role": "user", "content": [{"type": "text", "text": 1}]}])


def test_our_own_question_has_no_chance_in_it() -> None:
    assert json.loads(plain_chat("j", [("user", "Hi")], 9)) == {
        "model": "j",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0,
        "max_tokens": 9,
    }


WHOLE: dict[str, Any] = {
    "choices": [{"message": {"content": "yes", "annotations": []}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "x": {}},
    "service_tier": "default",
}


def test_an_answer_of_any_server_is_read() -> None:
    assert said(json.dumps(WHOLE).encode()) == ("yes", True, 3, 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"choices": []},
        {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "a"}, "finish_reason": "abort"}]},
        {"choices": [{"message": "a", "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "a", "tool_calls": [1]}, "finish_reason": "stop"}]},
        {"usage": None},
        {"usage": {"prompt_tokens": -1, "completion_tokens": 1}},
        {"usage": {"prompt_tokens": True, "completion_tokens": 1}},
        {"error": {}, "choices": None},
    ],
)
def test_what_is_no_whole_answer_in_words_is_none(changes: dict[str, Any]) -> None:
    assert said(json.dumps(WHOLE | changes).encode()) is None
    assert said(b"[]") is None
    assert said(b"\xff") is None
