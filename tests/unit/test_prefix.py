"""By which hash prompts that begin alike are told."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc import openai, wire
from extproc._generated.forebay_ext_proc_pb2 import ProcessingResponse
from extproc.openai import CHAT, COMPLETIONS, EMBEDDINGS, prefix_hash

SYSTEM = {"role": "system", "content": "You answer in one word."}
LONG = {"role": "system", "content": "You answer in one word. " * 60}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat(*messages: dict[str, Any], scope: str = "", **more: Any) -> str:
    body = orjson.dumps({"model": "m", "messages": messages, **more})
    return prefix_hash(openai.parse(CHAT, body), scope)


def completion(prompt: Any) -> str:
    return prefix_hash(openai.parse(COMPLETIONS, orjson.dumps({"model": "m", "prompt": prompt})))


MESSAGES = st.lists(
    st.builds(
        dict,
        role=st.sampled_from(["user", "assistant", "tool"]),
        content=st.text(max_size=20) | st.none(),
    ),
    max_size=4,
)


@given(st.sampled_from([(), (SYSTEM,), (LONG,), (SYSTEM, LONG)]), st.text(min_size=1), MESSAGES)
def test_a_conversation_keeps_its_hash_however_it_goes_on(
    leading: tuple[Any, ...], first: str, later: list[Any]
) -> None:
    assert chat(*leading, user(first)) == chat(*leading, user(first), *later)


def test_it_is_the_same_in_every_process_and_version() -> None:
    assert chat(user("hello")) == "b9ec7c4ec681616d"


def test_by_a_short_beginning_the_first_question_counts_by_a_long_one_not() -> None:
    assert chat(SYSTEM, user("a")) != chat(SYSTEM, user("b"))
    assert chat(LONG, user("a")) == chat(LONG, user("b"))
    assert chat(LONG, user("a")) != chat(SYSTEM, LONG, user("a"))


def test_tools_are_part_of_the_beginning() -> None:
    assert chat(user("a"), tools=[TOOL]) != chat(user("a"))
    many = [TOOL] * 30
    assert chat(user("a"), tools=many) == chat(user("b"), tools=many)


def test_parts_and_text_are_read_alike() -> None:
    assert chat(user([{"type": "text", "text": "a"}])) == chat(user("a"))
    assert chat(user(["a"])) == chat(user("a"))


def test_no_more_than_a_bounded_beginning_is_read() -> None:
    whole = "x" * 16 * 1024
    assert chat({"role": "system", "content": whole + "a"}, user("q")) == chat(
        {"role": "system", "content": whole + "b"}, user("q")
    )


def test_where_nothing_is_said_there_is_none() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert chat(user(None)) == chat(user([image])) == chat(user("")) == ""
    vectors = openai.parse(EMBEDDINGS, b'{"model":"m","input":"a"}')
    assert prefix_hash(vectors) == ""


def test_scopes_are_apart() -> None:
    assert len({chat(user("a"), scope=scope) for scope in ("", "acme", "other")}) == 3


def test_of_a_completion_the_beginning_of_the_first_prompt_counts() -> None:
    beginning = "b" * 1024
    assert completion(beginning + "x") == completion(beginning + "y")
    assert completion("x") != completion("y")
    assert completion(["x", "y"]) == completion("x")
    ids = list(range(256))
    assert completion([*ids, 1]) == completion([*ids, 2]) == completion([ids, [9]])
    assert completion([1, 2]) != completion([1, 3])


@pytest.mark.parametrize("prefix", ["", "00ff00ff00ff00ff"])
def test_the_header_is_set_only_where_there_is_one(prefix: str) -> None:
    facts = wire.AdmitFacts("json", ("small",), "t", "r", "", False, ";", "", "m")
    told = wire.admit(facts, timeout_ms=1, request_facts={}, body=None, prefix=prefix)
    reply = ProcessingResponse.FromString(told)
    headers = reply.request_body.response.header_mutation.set_headers
    said = {option.header.key: option.header.raw_value.decode() for option in headers}
    assert said.get(wire.PREFIX_HEADER, "") == prefix


def test_tools_that_nest_deeper_than_can_be_written_are_passed_over() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"tools":%b}'
    deep = openai.parse(CHAT, body % (b"[" * 900 + b"]" * 900))
    assert prefix_hash(deep)
