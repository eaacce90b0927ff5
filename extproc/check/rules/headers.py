"""What only the gateway may say is removed from a client's request before anything reads it."""

from collections.abc import Iterator

from extproc.check.bootstrap import Bootstrap, Door
from extproc.check.findings import Finding, error
from extproc.check.reading import matches
from extproc.wire import ADMIT_HEADER

_FIELD = "early_header_mutation_extensions"

_OURS = (ADMIT_HEADER, "x-forebay-tier", "x-forebay-tier-host", "x-forebay-tier-path")
_ENVOYS = (
    "x-envoy-max-retries",
    "x-envoy-retry-on",
    "x-envoy-retriable-status-codes",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
)


def is_stripped(door: Door, header: str) -> bool:
    for step in door.strips:
        if step.remove and step.remove.lower() == header:
            return True
        if step.remove_on_match and matches(step.remove_on_match.key_matcher, header):
            return True
    return False


def forebay_headers(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.model_doors:
        if kept := [name for name in _OURS if not is_stripped(door, name)]:
            opens = (
                "walk past the queue to a model by writing the admit header"
                if ADMIT_HEADER in kept
                else "send a request to a host and path of its own choice"
            )
            yield error(
                "forebay-headers-kept",
                door.spot.at(_FIELD),
                f"A client's own {', '.join(kept)} is not removed early: it can {opens}.",
                "Add to its mutations: {remove_on_match: {key_matcher: {prefix: x-forebay-}}}",
            )


def envoy_headers(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.model_doors:
        if kept := [name for name in _ENVOYS if not is_stripped(door, name)]:
            yield error(
                "envoy-headers-kept",
                door.spot.at(_FIELD),
                f"A client's own {', '.join(kept)} is not removed early: it can set retries and "
                "time-outs, and so have slow work done several times.",
                "Add to its mutations: {remove_on_match: {key_matcher: {prefix: x-envoy-}}}",
            )


def request_id(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.model_doors:
        if not is_stripped(door, "x-request-id"):
            yield error(
                "request-id-kept",
                door.spot.at(_FIELD),
                "A client's own x-request-id can reach the servers. vLLM makes its ids from it, "
                "and by such an id a request is stopped: one client could have another's answer "
                "ended.",
                "Add to its mutations: {remove: x-request-id}. Envoy then makes one.",
            )


def request_id_made(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.model_doors:
        if door.message.generate_request_id is False:
            yield error(
                "request-id-off",
                door.spot.at("generate_request_id"),
                "Without an x-request-id the processor cannot name an answer to the server that it "
                "asks to stop at the deadline: answers are cut instead.",
                "Remove generate_request_id: false.",
            )


RULES = (forebay_headers, envoy_headers, request_id, request_id_made)
