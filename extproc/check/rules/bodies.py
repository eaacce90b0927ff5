"""How large a request may be. Measured on Envoy 1.40 with this design's routes:

- The processor is sent whole bodies up to the *listener's* per_connection_buffer_limit_bytes. A
  larger request_body_buffer_limit does not lift it: before a request is admitted it stands on a
  route that only answers 503, which has no such limit.
- A body above the admit route's request_body_buffer_limit is sent once and never tried again: no
  fallback. Unset, it is the listener's limit.
- The clusters' per_connection_buffer_limit_bytes changes nothing about it.
"""

from collections.abc import Iterator

from extproc.check.bootstrap import Bootstrap, Door, Route
from extproc.check.findings import Finding, error

_MIB = 1024 * 1024
_DEFAULT = 1 * _MIB
# The processor's limit for one gRPC message (server.py), less what frames the body in it.
_MESSAGE_LIMIT = 32 * _MIB - 64 * 1024


def listener_limit(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, _ in bootstrap.gateways:
        limit = door.listener.per_connection_buffer_limit_bytes
        place = door.listener_spot.at("per_connection_buffer_limit_bytes")
        promised = [at for route in door.admit_routes if (at := _own_limit(route)) is not None]
        if limit is None or limit < max(promised, default=0):
            shown = f"{_shown(_DEFAULT)} (the default)" if limit is None else _shown(limit)
            more = f"; the routes promise {_shown(max(promised))}" if promised else ""
            yield error(
                "body-limit",
                place,
                f"Bodies above {shown} get 413 before the processor has seen them{more}.",
                f"per_connection_buffer_limit_bytes: {max(promised, default=16 * _MIB)}",
            )
        elif limit > _MESSAGE_LIMIT:
            yield error(
                "body-above-grpc-limit",
                place,
                f"It is {_shown(limit)}, and the processor takes messages of up to 32 MiB: a "
                "larger body breaks its stream and is answered 503 instead of 413.",
                f"per_connection_buffer_limit_bytes: {16 * _MIB}",
            )


def retry_limit(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, _ in bootstrap.gateways:
        for route in door.admit_routes:
            own, whole = _own_limit(route), _listener_limit(door)
            if own is not None and own < whole:
                yield error(
                    "retry-body-limit",
                    route.spot.at("request_body_buffer_limit"),
                    f"Bodies up to {_shown(whole)} are admitted, but above {_shown(own)} none is "
                    "kept for another attempt: they have no fallback.",
                    f"request_body_buffer_limit: {whole}, the listener's "
                    "per_connection_buffer_limit_bytes",
                )


def _listener_limit(door: Door) -> int:
    limit = door.listener.per_connection_buffer_limit_bytes
    return _DEFAULT if limit is None else limit


def _own_limit(route: Route) -> int | None:
    for owner in (route.message, route.host.message):
        for limit in (owner.request_body_buffer_limit, owner.per_request_buffer_limit_bytes):
            if limit is not None:
                return limit
    return None


def _shown(size: int) -> str:
    return f"{size / _MIB:g} MiB" if size % 1024 == 0 else f"{size} bytes"


RULES = (listener_limit, retry_limit)
