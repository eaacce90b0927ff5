"""Envoy's messages as plain Python values. The only module that touches protobuf.

Replies are bytes. What is the same in many replies is serialized once: concatenated protobuf
messages merge, so a reply is a prepared part plus the few bytes of this request.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import itemgetter
from string import ascii_lowercase
from typing import Literal, NamedTuple

from extproc._generated.forebay_accesslog_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from extproc._generated.forebay_ext_proc_pb2 import (
    BodyResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValueOption,
    HttpHeaders,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    TrailersResponse,
)

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
EXT_PROC_METHOD = "Process"
ACCESS_LOG_SERVICE = "opentelemetry.proto.collector.logs.v1.LogsService"
ACCESS_LOG_METHOD = "Export"

# Envoy removes whatever a client sends under this name; its admit routes match it.
ADMIT_HEADER = "x-forebay-admit"
_TIMEOUT_HEADER = "x-envoy-upstream-rq-timeout-ms"

# What a model server answers where our credential, our name for the model or its path is wrong: no
# client's mistake, and perhaps not the next tier's.
REFUSALS = "301,302,303,307,308,401,402,403,404,405"
PREFIX_HEADER = "x-forebay-prefix"
"""By what it says a cluster with RING_HASH chooses among its replicas; see openai.prefix_hash."""

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
    """A piece of the answer, or all of it: see SHOW_ANSWER_PIECES and SHOW_ANSWER_WHOLE."""

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

CONTINUE_BODY: bytes = ProcessingResponse(request_body=BodyResponse()).SerializeToString()
"""Let a request go on as it is. Not what admits one: `admit` does."""

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


def _show_answer(mode: ProcessingMode.BodySendMode, *, without: tuple[str, ...] = ()) -> bytes:
    reply = ProcessingResponse(
        mode_override=ProcessingMode(
            response_body_mode=mode, response_trailer_mode=ProcessingMode.SEND
        )
    )
    reply.response_headers.response.header_mutation.remove_headers.extend(without)
    return reply.SerializeToString()


SHOW_ANSWER_PIECES: bytes = _show_answer(
    ProcessingMode.FULL_DUPLEX_STREAMED,
    without=("content-length",),  # we may end it before
)
"""Let the headers of the answer pass, and its body by way of us: a `piece` for each one."""

SHOW_ANSWER_WHOLE: bytes = _show_answer(ProcessingMode.BUFFERED)
"""The same with one message for the whole body, for an answer that is short. Its reply is
PASS_WHOLE."""

PASS_WHOLE: bytes = ProcessingResponse(response_body=BodyResponse()).SerializeToString()
"""Let the whole answer pass."""


# A header is bytes; one character for each keeps any two apart.
_AS = "latin-1"


def as_in_header(text: str) -> str:
    """What `read` makes of a header that says this in UTF-8."""
    return text.encode("utf-8", "surrogatepass").decode(_AS)


def as_written(value: str) -> str:
    """A header's value for a person."""
    return value.encode(_AS, "replace").decode("utf-8", "replace")


def read(data: bytes) -> Message:
    """One message of the ext_proc stream."""
    message = ProcessingRequest.FromString(data)
    phase = message.WhichOneof("request")
    if phase == "request_headers" or phase == "response_headers":
        headers: HttpHeaders = getattr(message, phase)
        values = {h.key: h.raw_value.decode(_AS) or h.value for h in headers.headers.headers}
        made = RequestHeaders if phase == "request_headers" else AnswerHeaders
        return made(values, headers.end_of_stream)
    if phase == "request_body":
        return RequestBody(message.request_body.body)
    if phase == "response_body":
        return AnswerBody(message.response_body.body, message.response_body.end_of_stream)
    return OtherPhase(_PASS_BYTES.get(phase or "", b""))


def hold_longer(seconds: float) -> bytes:
    """Have Envoy wait for our reply to its last message for so long from now on, instead of its
    message_timeout: once for each message, and up to its max_message_timeout."""
    reply = ProcessingResponse()
    reply.override_message_timeout.FromMilliseconds(int(seconds * 1000))
    return reply.SerializeToString()


class AdmitFacts(NamedTuple):
    """What is the same for many requests that reach the models. `tiers`: cluster names in the order
    of the attempts. `tenant` to `asked`, and `kind`: metadata under `forebay`, read by the tiers'
    upstream filters, response headers and the access log."""

    kind: Admit
    tiers: tuple[str, ...]
    tenant: str
    route: str
    cache_status: str
    hide_usage: bool
    models: str
    uncounted: str
    asked: str


def admit(
    facts: AdmitFacts,
    *,
    timeout_ms: int,
    request_facts: dict[str, str],
    body: bytes | None,
    prefix: str = "",
    limits: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """The reply to the body message that lets a request reach the models.

    `request_facts`: metadata under `forebay_request`, of this one. `body`: the new body, or None to
    leave the client's. `prefix`: the value of PREFIX_HEADER; empty: none. `limits`: metadata under
    `forebay_limits`, which become headers of the answer, each behind `x-ratelimit-`.
    """
    headers = {_TIMEOUT_HEADER: str(timeout_ms)}
    if prefix:
        headers[PREFIX_HEADER] = prefix
    if body is not None:
        headers["content-length"] = str(len(body))  # else Envoy answers 500
    texts = [text.encode() for text in (*headers.values(), *request_facts.values())]
    frame, in_order = _frame((*headers,), (*request_facts,), (*map(len, texts),))
    parts = [_admit_prepared(facts), frame % in_order(texts)]
    if limits or body is not None:
        reply = ProcessingResponse()
        if limits:
            _set_metadata(reply, "forebay_limits", limits)
        if body is not None:
            reply.request_body.response.body_mutation.body = body
        parts.append(reply.SerializeToString())
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _frame(
    headers: tuple[str, ...], facts: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[bytes, Callable[[list[bytes]], tuple[bytes, ...]]]:
    """What `admit` says by headers and by `forebay_request`, as a format for the texts, of `sizes`
    bytes each, and these in its order: what has the same sizes differs in the texts alone. To make
    it anew costs three times as much as all else of `admit`."""

    def filled(texts: Iterable[str]) -> bytes:
        given = iter(texts)
        reply = ProcessingResponse()
        for name in headers:
            _set(reply.request_body.response.header_mutation, name, next(given))
        _set_metadata(reply, "forebay_request", zip(facts, given, strict=True))
        return reply.SerializeToString(deterministic=True)  # a map has no order else

    return _as_format(filled, sizes)


def _as_format(
    filled: Callable[[Iterable[str]], bytes], sizes: tuple[int, ...]
) -> tuple[bytes, Callable[[list[bytes]], tuple[bytes, ...]]]:
    """The bytes of a message that are the same whatever its texts, `%b` for each text, and what
    puts the texts in that order. `filled`: the message with such texts, of `sizes` bytes each."""
    letters = zip(ascii_lowercase, sizes, strict=False)
    texts = [letter * size for letter, size in letters]
    lower, upper = filled(texts), filled(map(str.upper, texts))
    order: list[int] = []
    frame = b""
    at = 0
    while at < len(lower):
        if lower[at] == upper[at]:
            frame += b"%%" if lower[at : at + 1] == b"%" else lower[at : at + 1]
            at += 1
        else:
            index = lower[at] - ord("a")
            order.append(index)
            frame += b"%b"
            at += sizes[index]
    return frame, itemgetter(*order) if order else lambda _: ()


@lru_cache(maxsize=1024)
def _admit_prepared(facts: AdmitFacts) -> bytes:
    reply = ProcessingResponse()
    common = reply.request_body.response
    common.clear_route_cache = True
    _set(common.header_mutation, ADMIT_HEADER, facts.kind)
    _set(common.header_mutation, "x-envoy-max-retries", str(len(facts.tiers) - 1))
    if len(facts.tiers) > 1:
        _set(common.header_mutation, "x-envoy-retriable-status-codes", REFUSALS)
    metadata = (
        ("kind", facts.kind),
        ("tenant", facts.tenant),
        ("route", facts.route),
        ("cache_status", facts.cache_status),
        ("hide_usage", "1" if facts.hide_usage else "0"),
        ("models", facts.models),
        ("uncounted", facts.uncounted),
        ("asked", facts.asked),
    )
    _set_metadata(reply, "forebay", metadata)
    groups = [{"name": tier} for tier in facts.tiers]
    reply.dynamic_metadata.update({"pg": {"priority_groups": groups}})
    return reply.SerializeToString()


def _set_metadata(
    reply: ProcessingResponse, namespace: str, facts: Iterable[tuple[str, str]]
) -> None:
    fields = reply.dynamic_metadata.fields[namespace].struct_value.fields
    for name, value in facts:
        fields[name].string_value = value


def piece(
    body: bytes, *, end_of_stream: bool, request_facts: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """A piece of the answer for the client. It may be sent unasked, and end the answer before the
    server does; Envoy then resets the server's stream. `request_facts`: see `admit`."""
    reply = ProcessingResponse()
    if request_facts:
        _set_metadata(reply, "forebay_request", request_facts)
    streamed = reply.response_body.response.body_mutation.streamed_response
    streamed.body = body
    streamed.end_of_stream = end_of_stream
    return reply.SerializeToString()


def immediate(
    request_id: str,
    status: int,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
    details: str,
    limits: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """The reply that answers the client at once; no model is called.

    `details`: one word of ours, seen in Envoy's logs as response code details. `limits`: see
    `admit`.
    """
    told = {"x-request-id": request_id}
    told.update(headers)
    for name, value in limits:
        told[f"x-ratelimit-{name}"] = value
    texts = [text.encode() for text in told.values()]
    frame, in_order = _immediate_frame(status, details, (*told,), (*map(len, texts),))
    # A refusal is one of few, each cached answer new. A long one may quote a path.
    with_body = _answer if status == 200 or len(body) > 500 else _answer_prepared
    return frame % in_order(texts) + with_body(body)


@lru_cache(maxsize=1024)
def _immediate_frame(
    status: int, details: str, headers: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[bytes, Callable[[list[bytes]], tuple[bytes, ...]]]:
    """See `_frame`."""

    def filled(texts: Iterable[str]) -> bytes:
        reply = ProcessingResponse()
        reply.immediate_response.status.code = status
        reply.immediate_response.details = details
        for name, text in zip(headers, texts, strict=True):
            _set(reply.immediate_response.headers, name, text)
        return reply.SerializeToString()

    return _as_format(filled, sizes)


def _answer(body: bytes) -> bytes:
    reply = ProcessingResponse()
    reply.immediate_response.body = body
    return reply.SerializeToString()


_answer_prepared = lru_cache(maxsize=1024)(_answer)


def _set(mutation: HeaderMutation, name: str, value: str) -> None:
    option = mutation.set_headers.add(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
    option.header.key = name
    option.header.raw_value = value.encode()


def read_log(data: bytes) -> list[str]:
    """A batch of the access log: what is said of each finished exchange, see extproc.accounting.
    All of it is one text: twenty attributes would cost three times as much as all else that is done
    with an entry."""
    message = ExportLogsServiceRequest.FromString(data)
    return [
        record.body.string_value.decode(errors="replace")
        for resource in message.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


LOG_REPLY: bytes = ExportLogsServiceResponse().SerializeToString()
