"""The guard of a streamed answer: whole events pass unchanged, and it can be ended at any time."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from extproc.openai import CHAT, COMPLETIONS
from extproc.streaming import Guard


def chunk(text: str, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    one = {"id": "chatcmpl-server", "created": 7, "model": "m", "choices": [choice], **more}
    return b"data: " + json.dumps(one).encode() + b"\n\n"


def guard(path: str = CHAT) -> Guard:
    return Guard(path, "R", "small-7b")


def events(data: bytes) -> list[str]:
    return [event.removeprefix("data: ") for event in data.decode().split("\n\n") if event]


STREAM = chunk("") + b": keep-alive\n\n" + chunk("Hi \xfc") + chunk(" you") + b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, len(STREAM)), max_size=30), st.booleans())
def test_however_the_stream_is_split_all_of_it_passes_in_whole_events(
    cuts: list[int], crlf: bool
) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    places = sorted({0, *cuts, len(stream)})
    watch, passed = guard(), b""
    for start, end in pairwise(places):
        passed += watch.feed(stream[start:end])
        assert not passed or passed.endswith((b"\n\n", b"\r\n\r\n"))
    assert not watch.can_close  # [DONE] has passed
    assert passed + watch.end() == stream


@given(st.integers(0, len(STREAM) - len(b"data: [DONE]\n\n") - 1))
def test_at_any_byte_it_can_be_ended_well_formed(at: int) -> None:
    watch = guard()
    passed = watch.feed(STREAM[:at])
    assert watch.can_close
    whole = events(passed + watch.closing("deadline", choices=1, with_usage=False))
    assert whole[-1] == "[DONE]"
    chunks = [json.loads(event) for event in whole[:-1] if not event.startswith(":")]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    assert chunks[-1]["forebay"] == {"incomplete": True, "reason": "deadline"}
    known = len(chunks) > 1
    assert chunks[-1]["id"] == ("chatcmpl-server" if known else "chatcmpl-R")
    assert chunks[-1]["model"] == ("m" if known else "small-7b")


def test_each_choice_is_ended_and_usage_is_an_estimate_of_the_chunks() -> None:
    watch = guard(COMPLETIONS)
    watch.feed(chunk("a") + chunk("b"))
    *_, last, usage, done = events(watch.closing("deadline", choices=2, with_usage=True))
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
    usage = json.loads(events(watch.closing("deadline", choices=1, with_usage=True))[-2])
    assert usage["usage"]["completion_tokens"] == 1


def test_a_first_chunk_that_is_no_json_does_not_matter() -> None:
    watch = guard()
    watch.feed(b"data: hello\n\n")
    last = json.loads(events(watch.closing("deadline", choices=1, with_usage=False))[0])
    assert last["id"] == "chatcmpl-R"


def test_an_event_without_end_is_not_held_for_ever() -> None:
    watch, passed = guard(), b""
    for _ in range(300):
        passed += watch.feed(b"x" * 1024)
    assert not watch.can_close  # half an event has passed: nothing can be appended any more
    assert passed + watch.end() == b"x" * 300 * 1024


def test_before_the_first_piece_nothing_can_be_written() -> None:
    assert not guard().can_close
