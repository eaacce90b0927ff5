"""Envoy's messages as bytes, and that the generated code is what protos/ says."""

import filecmp
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import wire
from extproc._generated.forebay_accesslog_pb2 import ExportLogsServiceRequest
from extproc._generated.forebay_ext_proc_pb2 import (
    HeaderMap,
    HeaderMutation,
    HeaderValue,
    HeaderValueOption,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
)

_FACTS = {
    "tenant": "a",
    "route": "small; reason=default",
    "cache_status": "",
    "hide_usage": True,
    "models": ";",
    "uncounted": "",
    "asked": "auto",
}
ROOT = Path(__file__).parents[2]

# The sizes at which a length takes one more byte, and what means something to a format.
_SIZES = st.sampled_from([0, 1, 36, 37, 38, 126, 127, 128, 129, 16383, 16384, 20_000])
_TEXTS = (
    st.builds(str.__mul__, st.sampled_from("aZ%\0"), _SIZES)
    | st.sampled_from(["%s", "%%", "%(a)b", "b" * 37, "Zoë 日本", "abcABC"])
    | st.text(st.characters(codec="utf-8"), max_size=40)
)
_NAMES = st.sampled_from(["retry-after", "age", "cache-status", "100%", "x-forebay-route"])
_PAIRS = st.lists(st.tuples(_NAMES, _TEXTS), max_size=5).map(tuple)


def test_the_generated_code_is_fresh(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "protos" / "generate.py"))["generate"](tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert len(made) == 4
    _, different, missing = filecmp.cmpfiles(
        tmp_path, ROOT / "extproc" / "_generated", made, shallow=False
    )
    assert (different, missing) == ([], []), "run `make protos`"


def test_request_headers_are_read_from_raw_and_from_plain_values() -> None:
    headers = HeaderMap(
        headers=[
            HeaderValue(key=":path", raw_value=b"/v1/models"),
            HeaderValue(key="x-a", value="plain"),
            HeaderValue(key="x-b", raw_value=b"\xff"),
        ]
    )
    message = ProcessingRequest(request_headers=HttpHeaders(headers=headers, end_of_stream=True))
    assert wire.read(message.SerializeToString()) == wire.RequestHeaders(
        {":path": "/v1/models", "x-a": "plain", "x-b": "\xff"}, True
    )


def test_the_body_is_read_byte_for_byte() -> None:
    message = ProcessingRequest(request_body=HttpBody(body=b"\x00{}", end_of_stream=True))
    assert wire.read(message.SerializeToString()) == wire.RequestBody(b"\x00{}")


def test_a_message_that_only_passes_is_answered_in_its_own_phase() -> None:
    message = ProcessingRequest(response_trailers=HttpTrailers())
    passing = wire.read(message.SerializeToString())
    assert isinstance(passing, wire.OtherPhase)
    reply = ProcessingResponse.FromString(passing.reply)
    assert reply.WhichOneof("response") == "response_trailers"


def test_an_admit_reply_merges_its_prepared_and_its_own_part() -> None:
    reply = ProcessingResponse.FromString(
        wire.admit(
            wire.AdmitFacts(kind="json", tiers=("small", "small", "large"), **_FACTS),
            timeout_ms=1500,
            request_facts={"queue_ms": "0.1"},
            body=b"{}",
        )
    )
    common = reply.request_body.response
    assert {h.header.key: h.header.raw_value for h in common.header_mutation.set_headers} == {
        "x-forebay-admit": b"json",
        "x-envoy-max-retries": b"2",
        "x-envoy-retriable-status-codes": b"301,302,303,307,308,401,402,403,404,405",
        "x-envoy-upstream-rq-timeout-ms": b"1500",
        "content-length": b"2",
    }
    assert common.clear_route_cache
    assert common.body_mutation.body == b"{}"
    groups = reply.dynamic_metadata["pg"]["priority_groups"]  # pyright: ignore
    assert [group["name"] for group in groups] == ["small", "small", "large"]
    assert dict(reply.dynamic_metadata["forebay"]) == {  # pyright: ignore
        **_FACTS,
        "kind": "json",
        "hide_usage": "1",
    }
    assert dict(reply.dynamic_metadata["forebay_request"]) == {"queue_ms": "0.1"}  # pyright: ignore


def test_a_client_body_that_stays_is_not_sent_back() -> None:
    reply = ProcessingResponse.FromString(
        wire.admit(
            wire.AdmitFacts(kind="json", tiers=("s",), **_FACTS),
            timeout_ms=1,
            request_facts={},
            body=None,
        )
    )
    assert not reply.request_body.response.HasField("body_mutation")


@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize("body", [b"{}", b"x" * 1000])
def test_an_immediate_reply_carries_status_headers_and_body(status: int, body: bytes) -> None:
    # Most of a refusal is prepared; not its id.
    for request_id in ("one", "two", "%%s", "é" * 20, "x" * 37, "y" * 300):
        data = wire.immediate(request_id, status, (("retry-after", "3"),), body, "forebay_x")
        answer = ProcessingResponse.FromString(data).immediate_response
        assert (answer.status.code, answer.body, answer.details) == (status, body, "forebay_x")
        headers = {h.header.key: h.header.raw_value for h in answer.headers.set_headers}
        assert headers == {"retry-after": b"3", "x-request-id": request_id.encode()}


def test_of_log_records_the_bodies_are_read() -> None:
    message = ExportLogsServiceRequest()
    records = message.resource_logs.add().scope_logs.add().log_records
    records.add().body.string_value = b"json\nacme"
    records.add()
    message.resource_logs.add().scope_logs.add().log_records.add().body.string_value = b"stream"
    assert wire.read_log(message.SerializeToString()) == ["json\nacme", "", "stream"]


def test_a_record_that_is_no_utf_8_does_not_cost_the_others_of_its_batch() -> None:
    message = ExportLogsServiceRequest()
    records = message.resource_logs.add().scope_logs.add().log_records
    records.add().body.string_value = b"json\n\xff\xfe\n\xc3\xa9"
    records.add().body.string_value = b"stream"
    assert wire.read_log(message.SerializeToString()) == ["json\n\ufffd\ufffd\né", "stream"]


_ODD = ("%s 100%", "Zoë", "aAbB", "", 'p="1"')


@pytest.mark.parametrize("shift", range(len(_ODD)))
def test_what_an_admit_reply_says_is_what_it_was_told_whatever_the_texts(shift: int) -> None:
    """Replies whose texts have the same sizes share a frame."""
    texts = (*_ODD[shift:], *_ODD[:shift])
    names = ("queue", "bill", "model_span", "adds", "cuts")
    told: dict[str, str] = dict(zip(names, texts, strict=True))
    reply = ProcessingResponse.FromString(
        wire.admit(
            wire.AdmitFacts(kind="stream", tiers=("s",), **_FACTS),
            timeout_ms=1234 + shift,
            request_facts=told,
            body=b"x" * 300,
            prefix="0a1b",
            limits=(("limit-requests", "7"),),
        )
    )
    assert dict(reply.dynamic_metadata["forebay_request"]) == told  # pyright: ignore
    assert dict(reply.dynamic_metadata["forebay_limits"]) == {"limit-requests": "7"}  # pyright: ignore
    common = reply.request_body.response
    headers = {h.header.key: h.header.raw_value for h in common.header_mutation.set_headers}
    assert headers["x-envoy-upstream-rq-timeout-ms"] == b"%d" % (1234 + shift)
    assert headers["x-forebay-prefix"] == b"0a1b"
    assert headers["content-length"] == b"300"
    assert common.body_mutation.body == b"x" * 300


def _with_header(mutation: HeaderMutation, name: str, value: str) -> None:
    option = mutation.set_headers.add(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
    option.header.key, option.header.raw_value = name, value.encode()


@settings(deadline=None)
@given(st.integers(1, 10**9), st.dictionaries(_NAMES, _TEXTS), _TEXTS, _PAIRS)
def test_an_admit_reply_is_what_protobuf_makes_of_the_same(
    timeout_ms: int, told: dict[str, str], prefix: str, limits: tuple[tuple[str, str], ...]
) -> None:
    facts = wire.AdmitFacts(kind="json", tiers=("s",), **_FACTS)
    body = prefix.encode() if timeout_ms % 2 else None
    expected = ProcessingResponse.FromString(
        wire.admit(facts, timeout_ms=0, request_facts={}, body=None)
    )
    common = expected.request_body.response
    del common.header_mutation.set_headers[-1]  # the timeout
    _with_header(common.header_mutation, "x-envoy-upstream-rq-timeout-ms", str(timeout_ms))
    if prefix:
        _with_header(common.header_mutation, "x-forebay-prefix", prefix)
    if body is not None:
        _with_header(common.header_mutation, "content-length", str(len(body)))
        common.body_mutation.body = body
    metadata = expected.dynamic_metadata.fields
    for space, pairs in (("forebay_request", told.items()), ("forebay_limits", limits)):
        for name, value in pairs:
            metadata[space].struct_value.fields[name].string_value = value
    made = wire.admit(
        facts, timeout_ms=timeout_ms, request_facts=told, body=body, prefix=prefix, limits=limits
    )
    reply = ProcessingResponse.FromString(made)
    if not told:
        metadata["forebay_request"].struct_value.Clear()
        reply.dynamic_metadata.fields["forebay_request"].struct_value.Clear()
    assert reply == expected


@settings(deadline=None)
@given(_TEXTS, st.sampled_from([200, 429]), _PAIRS, st.binary(max_size=600), _PAIRS)
def test_an_immediate_reply_is_what_protobuf_makes_of_the_same(
    request_id: str,
    status: int,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
    limits: tuple[tuple[str, str], ...],
) -> None:
    expected = ProcessingResponse()
    answer = expected.immediate_response
    answer.status.code, answer.body, answer.details = status, body, "forebay_x"  # pyright: ignore
    # Of two of one name Envoy takes the last.
    told = {"x-request-id": request_id, **dict(headers)}
    for name, value in (told | {f"x-ratelimit-{name}": value for name, value in limits}).items():
        _with_header(answer.headers, name, value)
    made = wire.immediate(request_id, status, headers, body, "forebay_x", limits)
    assert ProcessingResponse.FromString(made) == expected
