"""What Envoy counts on the way back, and whether the processor hears of it."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from extproc.accounting import LOG_LINES
from extproc.check.bootstrap import Bootstrap, Door, Filter
from extproc.check.findings import RENEW, Finding, error, warning
from extproc.check.reading import Reader, Spot, texts
from extproc.config.tree import dig

if TYPE_CHECKING:
    from envoy_data_plane.envoy.extensions.access_loggers.open_telemetry import v3 as log_v3

_NAMESPACE = "llm"
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_JSON = ".json_to_metadata.v3.JsonToMetadata"
_COUNTS_JSON = "count_json"  # says our Lua filter that does
_SSE = ".sse_to_metadata.v3.SseToMetadata"
_TAKE_COUNT = "take the Lua filter `count` from this version's envoy/envoy.yaml"
_MODEL_HEADER = "x-forebay-model"
_POOL_HEADER = "x-forebay-served-by"
_FEW_BYTES = 8192  # Envoy's default for max_event_size


def access_log(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, processor in bootstrap.gateways:
        found = [
            (spot, config)
            for spot, config in door.logs
            if _log_cluster(config) == processor.cluster
        ]
        if not found:
            yield error(
                "access-log",
                door.spot.at("access_log"),
                "No access log goes to the processor's cluster by OTLP (an earlier version's "
                "http_grpc is no longer read): it learns no tokens, no times and no attempts; "
                "metrics and cost stay at zero.",
                f"{RENEW} or take envoy.access_loggers.open_telemetry from envoy/envoy.yaml.",
            )
        for spot, _ in found[1:]:
            yield error(
                "access-log-twice",
                spot,
                "A second access log goes to the processor: what both tell is billed twice.",
                "Remove one of them.",
            )
        for spot, config in found:
            told = config.body.string_value if config.body else None
            if (lines := tuple((told or "").split("\n"))) != LOG_LINES:
                yield error(
                    "access-log-body",
                    spot.at("typed_config.body"),
                    f"The processor counts from the log's body, in which {_odd(lines)}: it learns "
                    "no tokens, no times and no attempts.",
                    f"{RENEW} or take the body from this version's envoy/envoy.yaml.",
                )


def _odd(lines: tuple[str, ...]) -> str:
    for number, (line, due) in enumerate(zip_longest(lines, LOG_LINES, fillvalue="missing"), 1):
        if line != due:
            return f"line {number} is {line or 'missing'} where {due} is due"
    raise AssertionError("the lines are as they should be")


def _log_cluster(log: "log_v3.OpenTelemetryAccessLogConfig") -> str | None:
    service = log.grpc_service
    return service.envoy_grpc.cluster_name if service and service.envoy_grpc else None


def counting(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, _ in bootstrap.gateways:
        found = [one for one in door.filters if one.is_a(_SSE)]
        if not found:
            yield error(
                "sse-to-metadata",
                door.spot.at("http_filters"),
                "Without the filter sse_to_metadata no tokens of streamed answers are counted: "
                "budgets and cost do not see them.",
                "Take envoy.filters.http.sse_to_metadata from envoy/envoy.yaml.",
            )
        elif not any(one.elsewhere for one in found):
            written = {key for one in found for key in _sse_keys(one)}
            if lost := [key for key in _COUNTS if key not in written]:
                yield error(
                    "token-keys",
                    found[0].spot.at("typed_config.response_rules"),
                    f"It does not write {', '.join(lost)} under {_NAMESPACE} for streamed "
                    "answers, where the access log reads it.",
                    "Take its rules from envoy/envoy.yaml.",
                )


def json_counting(bootstrap: Bootstrap) -> Iterator[Finding]:
    """By our Lua filter; in a config of an earlier version by json_to_metadata."""
    for door, _ in bootstrap.gateways:
        counts = any(_says(one, _COUNTS_JSON) for one in door.filters)
        parsers = [one for one in door.filters if _parses_json(one)]
        if not counts and not parsers:
            yield error(
                "json-uncounted",
                door.spot.at("http_filters"),
                "No filter counts the tokens of JSON answers: budgets and cost do not see them.",
                f"{RENEW} or {_TAKE_COUNT}.",
            )
        for one in parsers:
            yield warning(
                "json-parsed-whole",
                one.spot,
                "It parses each JSON answer whole: a megabyte of embeddings holds up all streams "
                "of its thread for 25 ms. Our Lua filter counts without that.",
                "Remove it, but for rules of your own."
                if counts
                else f"{RENEW} or remove it and {_TAKE_COUNT}.",
            )


def _parses_json(one: Filter) -> bool:
    """What counted JSON answers in an earlier version."""
    return one.is_a(_JSON) and _NAMESPACE in texts(one.raw)


def _sse_keys(one: Filter) -> Iterator[str]:
    from envoy_data_plane.envoy.extensions.content_parsers.json.v3 import JsonContentParser

    parser = dig(one.raw, "response_rules", "content_parser", "typed_config")
    for part in Reader().message(JsonContentParser, parser, one.spot).rules:
        found = part.rule.on_present if part.rule else None
        if found and found.metadata_namespace == _NAMESPACE:
            yield found.key


def event_size(bootstrap: Bootstrap) -> Iterator[Finding]:
    from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata.v3 import SseToMetadata

    for door, _ in bootstrap.gateways:
        for one in door.filters:
            if not one.is_a(_SSE) or one.elsewhere:
                continue
            rules = Reader().message(SseToMetadata, one.raw, one.spot).response_rules
            size = rules.max_event_size if rules else None
            if size is None or 0 < size <= _FEW_BYTES:
                default = " (the default)" if size is None else ""
                yield warning(
                    "sse-event-size",
                    one.spot.at("typed_config.response_rules.max_event_size"),
                    f"Events above {_FEW_BYTES if size is None else size} bytes{default} are "
                    "thrown away uncounted: log probabilities or a long tool call make such.",
                    "max_event_size: 65536",
                )


def hide_usage(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, _ in bootstrap.gateways:
        hides = [n for n, one in enumerate(door.filters) if _hides(one)]
        counts = [n for n, one in enumerate(door.filters) if one.is_a(_SSE)]
        if not hides:
            yield warning(
                "hide-usage",
                door.spot.at("http_filters"),
                "The processor asks for a usage chunk in every stream, to have the count; no Lua "
                "filter hides it again from clients that did not ask.",
                "Take the Lua filter before ext_proc from envoy/envoy.yaml.",
            )
        elif counts and hides[0] > counts[0]:
            yield error(
                "hide-usage-order",
                _spot(door, hides[0]),
                "It is listed after sse_to_metadata, so it sees the answer first and cuts the "
                "usage chunk before it is counted: streams have no tokens.",
                "List it before sse_to_metadata: answers pass the filters from last to first.",
            )


def plain_events(bootstrap: Bootstrap) -> Iterator[Finding]:
    """Of servers that are not vLLM nobody knows what their events are."""
    config = bootstrap.policy.config
    pools = config.pools.items() if config is not None else ()
    others = [name for name, pool in pools if pool.server == "other"]
    for door, _ in bootstrap.gateways if others else ():
        counts = [n for n, one in enumerate(door.filters) if one.is_a(_SSE)]
        before = [n for n, one in enumerate(door.filters) if _says(one, "facts.uncounted")]
        if counts and not any(n > counts[0] for n in before):
            yield error(
                "plain-event",
                _spot(door, counts[0]),
                f"A stream of {', '.join(others)} with an event that is a plain JSON value, such "
                'as `data: "x"`, crashes Envoy 1.40 here, with all its clients.',
                "Take the Lua filter `count` from envoy/envoy.yaml, after sse_to_metadata.",
            )


def _hides(one: Filter) -> bool:
    return _says(one, "hide_usage")


def _says(one: Filter, word: str) -> bool:
    """Our Lua filter with this word; one whose source is in a file is trusted to be it."""
    if not one.is_a(".lua.v3.Lua"):
        return False
    found = list(texts(one.raw))
    return one.elsewhere or "filename" in found or any(word in value for value in found)


def _spot(door: Door, position: int) -> Spot:
    return door.filters[position].spot


def model_told(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.model_doors:
        for route in door.admit_routes:
            places = (route.message, route.host.message)
            added = {
                o.header.key.lower() for p in places for o in p.response_headers_to_add if o.header
            }
            if _POOL_HEADER not in added:
                yield error(
                    "pool-not-told",
                    route.spot.at("response_headers_to_add"),
                    f"Without {_POOL_HEADER} our Lua filters take no answer of this route for a "
                    "model's: no tokens of JSON answers are counted, budgets and cost do not see "
                    "them.",
                    f"{RENEW} or take this header from this version's envoy/envoy.yaml.",
                )
            if _MODEL_HEADER not in added:
                yield warning(
                    "model-not-told",
                    route.spot.at("response_headers_to_add"),
                    f"Answers of this route do not say whose they are: no {_MODEL_HEADER}.",
                    f"{RENEW} or take this header from this version's envoy/envoy.yaml.",
                )


RULES = (access_log, counting, json_counting, event_size, hide_usage, plain_events, model_told)
