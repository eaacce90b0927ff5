"""The time-outs: which must be longer than which, and that every exchange has a last moment."""

from collections.abc import Iterator
from datetime import timedelta
from math import ceil

from extproc.check.bootstrap import Bootstrap, Door, Processor, Route
from extproc.check.findings import Finding, error, warning
from extproc.config import AdmissionConfig

_MESSAGE_S = 0.2  # Envoy's defaults
_STREAM_IDLE_S = 300.0


def message_timeout(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    for _, processor in bootstrap.gateways:
        admission = config.admission if config else AdmissionConfig()
        message_s, wait_s = _message_s(processor), admission.max_wait
        if message_s <= max(wait_s, _MESSAGE_S):
            default = " (the default)" if processor.message.message_timeout is None else ""
            yield error(
                "message-timeout",
                processor.spot.at("message_timeout"),
                f"Envoy waits {message_s:g}s{default} for a decision, and a request may queue for "
                f"{wait_s:g}s (admission.max_wait): "
                + (
                    "it is ended while it still waits."
                    if message_s <= wait_s
                    else "a processor that is busy for a moment loses it."
                ),
                f"message_timeout: {ceil(wait_s + 5)}s, or anything well above admission.max_wait",
            )


def max_message_timeout(bootstrap: Bootstrap) -> Iterator[Finding]:
    """The processor has Envoy wait longer for a batch request; up to this, or not at all."""
    held_s = _held_s(bootstrap)
    for _, processor in bootstrap.gateways:
        most_s = _seconds(processor.message.max_message_timeout, 0.0)
        if held_s is not None and most_s < held_s:
            yield error(
                "max-message-timeout",
                processor.spot.at("max_message_timeout"),
                (f"It is {most_s:g}s" if most_s else "There is none")
                + ", and the longest wait of a batch request needs "
                f"{held_s:g}s (admission.batch.max_wait and a margin): Envoy ignores that it is to "
                "wait longer, and ends it after message_timeout.",
                f"max_message_timeout: {ceil(held_s)}s, or anything above",
            )


def _held_s(bootstrap: Bootstrap) -> float | None:
    config = bootstrap.policy.config
    return config.admission.held_s if config else None


def _longest_hold(bootstrap: Bootstrap, processor: Processor) -> tuple[float, str]:
    """How long a request may be held, and by which of the two limits."""
    message_s = _message_s(processor)
    if _held_s(bootstrap) is not None:
        most_s = _seconds(processor.message.max_message_timeout, 0.0)
        if most_s > message_s:
            return most_s, "max_message_timeout"
    return message_s, "message_timeout"


def stream_idle_timeout(bootstrap: Bootstrap) -> Iterator[Finding]:
    """A request that queues is an idle stream, on the route that it has before it is admitted."""
    for door, processor in bootstrap.gateways:
        message_s, of = _longest_hold(bootstrap, processor)
        limits = [
            (_seconds(door.message.stream_idle_timeout, _STREAM_IDLE_S), door.spot, "stream_")
        ] + [
            (_seconds(route.action.idle_timeout, 0.0), route.spot.at("route"), "")
            for route in door.first_routes
            if route.action
        ]
        for idle_s, spot, kind in limits:
            if idle_s and idle_s <= message_s:
                yield error(
                    "stream-idle-timeout",
                    spot.at(f"{kind}idle_timeout"),
                    f"It is {idle_s:g}s and {of} {message_s:g}s: while a request queues "
                    "its stream is idle, so it is cut before its wait is over.",
                    f"{kind}idle_timeout: {ceil(message_s * 4)}s, or anything above {of}",
                )


def held_stream_duration(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, processor in bootstrap.gateways:
        limit_s, (message_s, of) = _door_duration_s(door), _longest_hold(bootstrap, processor)
        if limit_s and limit_s <= message_s:
            yield error(
                "held-stream-duration",
                door.spot.at("common_http_protocol_options.max_stream_duration"),
                f"It is {limit_s:g}s and holds for requests that queue too, which may take "
                f"{message_s:g}s ({of}): they get 504.",
                "Remove it and set max_stream_duration on the admit routes.",
            )


def max_stream_duration(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    for door in bootstrap.model_doors:
        for route in door.admit_routes:
            limit_s = _route_duration_s(door, route)
            place = route.spot.at("route.max_stream_duration")
            if not limit_s:
                yield error(
                    "max-stream-duration",
                    place,
                    "Nothing ends an exchange whose client stops reading: it keeps its slot for "
                    "ever.",
                    "max_stream_duration: {max_stream_duration: 900s}",
                )
            elif config and limit_s <= (last_s := config.longest_stream_s):
                yield error(
                    "max-stream-duration-short",
                    place,
                    f"It cuts after {limit_s:g}s, and the longest exchange may take {last_s:g}s "
                    "(the wait of a batch request, response.deadline and grace): it is never ended "
                    "well-formed at its deadline.",
                    f"Above {last_s:g}s.",
                )


def cluster_stream_duration(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    if config is None:
        return
    processors = {processor.cluster for _, processor in bootstrap.gateways}
    for name, cluster in bootstrap.clusters.items():
        options = cluster.common_options
        limit_s = _seconds(options.max_stream_duration if options else None, 0.0)
        # The processor has a request from its arrival on, a server from its slot on.
        last_s = config.longest_stream_s if name in processors else config.longest_s
        if not limit_s or limit_s > last_s or name not in {*config.pools, *processors}:
            continue
        yield error(
            "cluster-stream-duration",
            cluster.options_spot.at("common_http_protocol_options.max_stream_duration"),
            f"It ends streams to {name} after {limit_s:g}s, and the longest may take {last_s:g}s: "
            + (
                "the slot of an answer that still runs is given to another."
                if name in processors
                else "answers are cut before their deadline can end them well-formed."
            ),
            "Remove it; the admit routes have a max_stream_duration.",
        )


def json_idle_timeout(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.model_doors:
        from_door_s = _seconds(door.message.stream_idle_timeout, _STREAM_IDLE_S)
        for route in _routes(door, "json"):
            idle = route.action.idle_timeout if route.action else None
            if idle_s := _seconds(idle, from_door_s):
                of = "" if idle is not None else ", the stream_idle_timeout"
                yield error(
                    "json-idle-timeout",
                    route.spot.at("route.idle_timeout"),
                    f"A JSON answer is silent while it is made; this route cuts it after "
                    f"{idle_s:g}s{of}.",
                    "idle_timeout: 0s (the deadline and max_stream_duration still end it)",
                )


def stream_route_idle(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    for door in bootstrap.model_doors:
        for route in _routes(door, "stream"):
            idle_s = _seconds(route.action.idle_timeout if route.action else None, 0.0)
            if config and idle_s and "json" not in (route.admits or ()):
                wait_s = config.admission.max_wait
                if idle_s <= wait_s:
                    yield warning(
                        "stream-idle-short",
                        route.spot.at("route.idle_timeout"),
                        f"A stream whose first token takes longer than {idle_s:g}s is cut without "
                        f"an answer. When requests wait up to {wait_s:g}s here "
                        "(admission.max_wait), first tokens are slow too.",
                        "idle_timeout: above the worst time to a first token, 60s or so",
                    )


def _routes(door: Door, kind: str) -> list[Route]:
    return [route for route in door.admit_routes if kind in (route.admits or ())]


def _message_s(processor: Processor) -> float:
    return _seconds(processor.message.message_timeout, _MESSAGE_S)


def _door_duration_s(door: Door) -> float:
    options = door.message.common_http_protocol_options
    return _seconds(options.max_stream_duration if options else None, 0.0)


def _route_duration_s(door: Door, route: Route) -> float:
    """0: none. A route's own wins over the door's, also if it is 0."""
    own = route.action.max_stream_duration if route.action else None
    return _seconds(own.max_stream_duration if own else None, _door_duration_s(door))


def _seconds(duration: timedelta | None, default_s: float) -> float:
    return default_s if duration is None else duration.total_seconds()


RULES = (
    message_timeout,
    max_message_timeout,
    stream_idle_timeout,
    held_stream_duration,
    max_stream_duration,
    cluster_stream_duration,
    json_idle_timeout,
    stream_route_idle,
)
