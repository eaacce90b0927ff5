"""The guard of a streamed answer: whole events pass unchanged, and it can be ended at any time."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai import CHAT, COMPLETIONS
from extproc.streaming import Guard


def chunk(text: str, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    one = {"id": "chatcmpl-server", "created": 7, "model": "m", "choices": [choice], **more}
    return b"data: " + json.dumps(one, ensure_ascii=False).encode() + b"\n\n"


def guard(path: str = CHAT, choices: int = 1) -> Guard:
    return Guard(path, "R", "small-7b", choices)


def events(data: bytes) -> list[str]:
    return [event.removeprefix("data: ") for event in data.decode().split("\n\n") if event]


TWO_LINES = b'event: x\nid: 4\ndata: {"id":"b",\ndata:"choices":[]}\n\n'
STREAM = (
    chunk("")
    + b": keep-alive\n\n"
    + chunk("Hi Zoë, 3 €")
    + TWO_LINES
    + b":\n"
    + chunk(" you")
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=30), st.booleans(), st.booleans())
def test_however_the_stream_is_split_all_of_it_passes_in_whole_events(
    cuts: list[int], crlf: bool, only_cr: bool
) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    stream = stream.replace(b"\r\n", b"\r").replace(b"\n", b"\r") if only_cr else stream
    places = sorted({0, *cuts, len(stream)})
    watch, passed = guard(), b""
    for start, end in pairwise(places):
        passed += watch.feed(stream[start:end])
        assert not passed or passed.endswith((b"\n\n", b"\r\n\r", b"\r\n\r\n", b"\r\r"))
    assert watch.closing("deadline", with_usage=True) == b""  # [DONE] has passed
    assert passed + watch.end() == stream
    assert not watch.can_close


@given(st.integers(0, len(STREAM) - len(b"data: [DONE]\n\n") - 1))
def test_at_any_byte_it_can_be_ended_well_formed(at: int) -> None:
    watch = guard()
    passed = watch.feed(STREAM[:at])
    assert watch.can_close
    whole = events(passed + watch.closing("deadline", with_usage=False))
    assert whole[-1] == "[DONE]"
    chunks = [
        json.loads(event.removeprefix(":\ndata: "))
        for event in whole[:-1]
        if not event.startswith((": ", "event:"))
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    assert chunks[-1]["forebay"] == {"incomplete": True, "reason": "deadline"}
    known = len(chunks) > 1
    assert chunks[-1]["id"] == ("chatcmpl-server" if known else "chatcmpl-R")
    assert chunks[-1]["model"] == ("m" if known else "small-7b")


def test_each_choice_is_ended_and_usage_is_an_estimate_of_the_chunks() -> None:
    watch = guard(COMPLETIONS, choices=2)
    watch.feed(chunk("a") + chunk("b"))
    *_, last, usage, done = events(watch.closing("deadline", with_usage=True))
    ends = json.loads(last)["choices"]
    assert [(end["index"], end["text"], end["finish_reason"]) for end in ends] == [
        (0, "", "length"),
        (1, "", "length"),
    ]
    assert json.loads(usage)["usage"]["completion_tokens"] == 2
    assert json.loads(usage)["forebay"]["usage_estimated"] is True
    assert done == "[DONE]"


def test_the_first_chunk_of_a_chat_has_no_token() -> None:
    watch = guard()
    watch.feed(chunk("") + chunk("a"))
    usage = json.loads(events(watch.closing("deadline", with_usage=True))[-2])
    assert usage["usage"]["completion_tokens"] == 1


def test_a_first_chunk_that_is_no_json_does_not_matter() -> None:
    watch = guard()
    watch.feed(b"data: hello\n\n")
    last = json.loads(events(watch.closing("deadline", with_usage=False))[0])
    assert last["id"] == "chatcmpl-R"


def test_an_event_without_end_is_not_held_for_ever() -> None:
    watch, passed = guard(), b""
    for _ in range(300):
        passed += watch.feed(b"x" * 1024)
    assert not watch.can_close  # half an event has passed: nothing can be appended any more
    assert passed + watch.end() == b"x" * 300 * 1024


@pytest.mark.parametrize("step", [1024, 65_536, 70_001])
def test_an_event_above_64_kilobytes_passes_whole_and_can_be_followed_by_an_end(step: int) -> None:
    watch, passed = guard(), b""
    stream = chunk("") + chunk("€" * 60_000)
    for start in range(0, len(stream), step):
        passed += watch.feed(stream[start : start + step])
        assert passed in (b"", chunk(""), stream)
    assert passed == stream
    assert watch.can_close
    assert watch.tokens_estimate == 1


def test_before_the_first_piece_nothing_can_be_written() -> None:
    assert not guard().can_close


def test_done_in_a_text_is_not_the_end() -> None:
    watch = guard()
    watch.feed(chunk("say data: [DONE] ok"))
    assert not watch.is_whole
    assert b'"incomplete"' in watch.closing("deadline", with_usage=False)


def test_done_without_a_space_is_the_end() -> None:
    watch = guard()
    watch.feed(chunk("a") + b"data:[DONE]\n\n")
    assert watch.is_whole
    assert watch.closing("deadline", with_usage=True) == b""


def finished(index: int) -> bytes:
    choice = {"index": index, "delta": {}, "finish_reason": "stop"}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def test_a_choice_that_has_ended_is_not_ended_again() -> None:
    watch = guard(choices=2)
    watch.feed(chunk("a") + finished(0))
    last, done = events(watch.closing("deadline", with_usage=False))
    assert [end["index"] for end in json.loads(last)["choices"]] == [1]
    assert done == "[DONE]"


def test_an_answer_that_lacks_only_done_gets_it_and_is_not_called_incomplete() -> None:
    watch = guard()
    watch.feed(chunk("a") + finished(0))
    assert watch.is_whole
    assert events(watch.closing("deadline", with_usage=False)) == ["[DONE]"]
    usage = json.loads(events(watch.closing("deadline", with_usage=True))[0])
    assert usage["forebay"] == {"usage_estimated": True}


ERROR = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'


@given(st.lists(st.integers(0, 300), max_size=8), st.booleans())
def test_an_error_event_does_not_pass_and_the_answer_is_ended_in_its_place(
    cuts: list[int], crlf: bool
) -> None:
    said = chunk("a") + chunk('he said "error" twice')
    stream = said + ERROR + b"data: [DONE]\n\n"
    if crlf:
        said, stream = said.replace(b"\n", b"\r\n"), stream.replace(b"\n", b"\r\n")
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    watch, passed = guard(), b""
    for start, end in pairwise(places):
        passed += watch.feed(stream[start:end])
        if watch.has_failed:
            break
    assert watch.has_failed
    assert passed == said
    *_, last, done = events(watch.closing("upstream_error", with_usage=False))
    assert json.loads(last)["forebay"] == {"incomplete": True, "reason": "upstream_error"}
    assert done == "[DONE]"


def test_an_error_in_a_text_is_none() -> None:
    watch = guard()
    text = chunk('data: {"error": 1}') + chunk("error")
    assert watch.feed(text) == text
    assert not watch.has_failed


@pytest.mark.parametrize("rest", [b"", b"\n", b"\r\n"])
def test_a_last_event_without_its_blank_line_gets_one(rest: bytes) -> None:
    watch = guard()
    passed = watch.feed(chunk("a") + chunk("b").rstrip(b"\n") + rest)
    assert passed + watch.end() == chunk("a") + chunk("b")
    assert watch.lacks_its_end


def test_half_an_event_at_the_end_is_dropped() -> None:
    watch = guard()
    assert watch.feed(chunk("a") + chunk("b")[:-8]) + watch.end() == chunk("a")
    assert watch.lacks_its_end


def test_a_usage_that_came_is_not_estimated_again() -> None:
    watch = guard()
    usage = b'data: {"choices":[],"usage":{"completion_tokens":1}}\n\n'
    watch.feed(chunk("a") + finished(0) + usage)
    assert events(watch.closing("deadline", with_usage=True)) == ["[DONE]"]


def test_the_usage_of_the_server_is_read_wherever_it_stands() -> None:
    watch = guard(choices=2)
    assert watch.usage is None
    details = {"cached_tokens": 4}
    for count in (1, 2):  # some servers send it with each chunk
        usage = {"prompt_tokens": 9, "completion_tokens": count, "prompt_tokens_details": details}
        watch.feed(chunk("a", usage=usage))
    assert watch.usage == (9, 4, 2)
    watch.feed(chunk('say "usage":{"prompt_tokens":1}') + chunk("a", usage=None))
    assert watch.usage == (9, 4, 2)


@pytest.mark.parametrize("usage", ["x", [], {"completion_tokens": -1}, {"completion_tokens": 1.5}])
def test_a_usage_that_makes_no_sense_is_none(usage: object) -> None:
    watch = guard()
    watch.feed(chunk("a", usage=usage))
    assert watch.usage in (None, (None, None, None))


def test_an_error_member_that_says_nothing_is_no_error() -> None:
    watch = guard()
    assert watch.feed(chunk("a", error=None)) == chunk("a", error=None)
    assert not watch.has_failed


def test_an_error_on_two_lines_of_data_is_one() -> None:
    watch = guard()
    assert watch.feed(chunk("a") + b'data: {"error":\ndata: {"code": 500}}\n\n') == chunk("a")
    assert watch.has_failed


def test_each_choice_of_a_chat_begins_with_a_chunk_without_a_token() -> None:
    watch = guard(choices=2)
    watch.feed(chunk("") + chunk("") + chunk("a") + chunk('data: {"choices":') + chunk("c"))
    assert watch.tokens_estimate == 3
