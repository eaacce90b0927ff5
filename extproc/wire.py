"""Envoy's messages as plain Python values. The only module that touches protobuf.

Replies are bytes. What is the same in many replies is serialized once: concatenated protobuf
messages merge, so a reply is a prepared part plus the few bytes of this request.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from extproc._generated.forebay_accesslog_pb2 import (
    StreamAccessLogsMessage,
    StreamAccessLogsResponse,
)
from extproc._generated.forebay_ext_proc_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
EXT_PROC_METHOD = "Process"
ACCESS_LOG_SERVICE = "envoy.service.accesslog.v3.AccessLogService"
ACCESS_LOG_METHOD = "StreamAccessLogs"

# Envoy removes whatever a client sends under this name; its admit routes match it.
ADMIT_HEADER = "x-forebay-admit"

Admit = Literal["stream", "json"]


class RequestHeaders(NamedTuple):
    values: dict[str, str]
    """Names in lower case, pseudo-headers included; of a repeated header the last value."""
    end_of_stream: bool
    """There is no body."""


class RequestBody(NamedTuple):
    body: bytes


class AnswerHeaders(NamedTuple):
    """The headers of the answer; sent only where CONTINUE_HEADERS_SHOW_ANSWER asked for them."""

    values: dict[str, str]
    end_of_stream: bool


class AnswerBody(NamedTuple):
    """A piece of the answer; sent only after SHOW_ANSWER_BODY, and to be passed on."""

    piece: bytes
    end_of_stream: bool


class OtherPhase(NamedTuple):
    """A message that only needs to be let pass with `reply`."""

    reply: bytes


Message = RequestHeaders | RequestBody | AnswerHeaders | AnswerBody | OtherPhase

_PASS = {
    "request_trailers": ProcessingResponse(request_trailers=TrailersResponse()),
    "response_trailers": ProcessingResponse(response_trailers=TrailersResponse()),
}
_PASS_BYTES = {phase: reply.SerializeToString() for phase, reply in _PASS.items()}

CONTINUE_HEADERS: bytes = ProcessingResponse(request_headers=HeadersResponse()).SerializeToString()
"""Let the request headers wait for the body phase."""

# An override replaces all modes: each names those of the config again.
CONTINUE_HEADERS_SHOW_ANSWER: bytes = ProcessingResponse(
    request_headers=HeadersResponse(),
    mode_override=ProcessingMode(
        request_body_mode=ProcessingMode.BUFFERED,
        response_header_mode=ProcessingMode.SEND,
        response_trailer_mode=ProcessingMode.SEND,
    ),
).SerializeToString()
"""The same, and send us the headers of the answer, should one come."""

PASS_ANSWER: bytes = ProcessingResponse(response_headers=HeadersResponse()).SerializeToString()
"""Let the answer pass; its body is not for us."""

SHOW_ANSWER_BODY: bytes = ProcessingResponse(
    response_headers=HeadersResponse(),
    mode_override=ProcessingMode(
        response_body_mode=ProcessingMode.FULL_DUPLEX_STREAMED,
        response_trailer_mode=ProcessingMode.SEND,
    ),
).SerializeToString()
"""Let the headers of the answer pass, and its body by way of us."""


def read(data: bytes) -> Message:
    """One message of the ext_proc stream."""
    message = ProcessingRequest.FromString(data)
    phase = message.WhichOneof("request")
    if phase == "request_headers":
        headers = message.request_headers
        values = {h.key: _text(h) for h in headers.headers.headers}
        return RequestHeaders(values, headers.end_of_stream)
    if phase == "request_body":
        return RequestBody(message.request_body.body)
    if phase == "response_headers":
        headers = message.response_headers
        values = {h.key: _text(h) for h in headers.headers.headers}
        return AnswerHeaders(values, headers.end_of_stream)
    if phase == "response_body":
        return AnswerBody(message.response_body.body, message.response_body.end_of_stream)
    return OtherPhase(_PASS_BYTES.get(phase or "", b""))


def _text(header: HeaderValue) -> str:
    raw = header.raw_value
    # A header is bytes; one character for each keeps any two apart.
    return raw.decode("latin-1") if raw else header.value


def admit(
    *,
    kind: Admit,
    tiers: tuple[str, ...],
    timeout_ms: int,
    facts: Mapping[str, str],
    body: bytes | None,
) -> bytes:
    """The reply to the body message that lets a request reach the models.

    `tiers`: cluster names in the order of the attempts. `facts`: metadata under `forebay`, read by
    the tiers' upstream filters, response headers and the access log. `body`: the new body, or None
    to leave the client's.
    """
    headers = [_header("x-envoy-upstream-rq-timeout-ms", str(timeout_ms))]
    common = CommonResponse()
    if body is not None:
        headers.append(_header("content-length", str(len(body))))  # else Envoy answers 500
        common.body_mutation.CopyFrom(BodyMutation(body=body))
    common.header_mutation.CopyFrom(HeaderMutation(set_headers=headers))
    reply = ProcessingResponse(request_body=BodyResponse(response=common))
    reply.dynamic_metadata.update({"forebay": dict(facts)})
    return _admit_prepared(kind, tiers) + reply.SerializeToString()


@lru_cache(maxsize=1024)
def _admit_prepared(kind: Admit, tiers: tuple[str, ...]) -> bytes:
    common = CommonResponse(
        clear_route_cache=True,
        header_mutation=HeaderMutation(
            set_headers=[
                _header(ADMIT_HEADER, kind),
                _header("x-envoy-max-retries", str(len(tiers) - 1)),
            ]
        ),
    )
    reply = ProcessingResponse(request_body=BodyResponse(response=common))
    reply.dynamic_metadata.update({"pg": {"priority_groups": [{"name": tier} for tier in tiers]}})
    return reply.SerializeToString()


def pass_piece(body: AnswerBody) -> bytes:
    """The reply that passes on a piece of the answer as it is."""
    piece = StreamedBodyResponse(body=body.piece, end_of_stream=body.end_of_stream)
    common = CommonResponse(body_mutation=BodyMutation(streamed_response=piece))
    return ProcessingResponse(response_body=BodyResponse(response=common)).SerializeToString()


def immediate(status: int, headers: Iterable[tuple[str, str]], body: bytes, details: str) -> bytes:
    """The reply that answers the client at once; no model is called.

    `details`: one word of ours, seen in Envoy's logs as response code details.
    """
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=status),
            headers=HeaderMutation(set_headers=[_header(k, v) for k, v in headers]),
            body=body,
            details=details,
        )
    ).SerializeToString()


def _header(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value.encode()),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )


class LogEntry(NamedTuple):
    """One finished exchange as Envoy saw it. `tags` are the custom_tags of the Envoy config."""

    status: int
    served_by: str
    """The cluster that answered last; empty when none was tried."""
    attempts: int
    details: str
    tags: Mapping[str, str]


def read_log(data: bytes) -> list[LogEntry]:
    """One message of the access-log stream."""
    message = StreamAccessLogsMessage.FromString(data)
    return [
        LogEntry(
            status=entry.response.response_code.value,
            served_by=entry.common_properties.upstream_cluster,
            attempts=entry.common_properties.upstream_request_attempt_count,
            details=entry.response.response_code_details,
            tags=dict(entry.common_properties.custom_tags),
        )
        for entry in message.http_logs.log_entry
    ]


LOG_REPLY: bytes = StreamAccessLogsResponse().SerializeToString()
