"""The ext_proc filter and its cluster: what the processor gets to see, and what it may do."""

from collections.abc import Iterator

from extproc.check.bootstrap import NAMESPACES, Bootstrap, Processor
from extproc.check.findings import RENEW, Finding, error, warning
from extproc.check.reading import matches, regex_matches
from extproc.wire import ADMIT_HEADER

_SETS = (ADMIT_HEADER, "x-envoy-upstream-rq-timeout-ms", "x-envoy-max-retries") + (
    "x-envoy-retriable-status-codes",
)
_READS = (":method", ":path", ":status", "content-encoding", "cache-control") + (
    "x-request-id",
    "x-latency-budget-ms",
    "x-request-class",
    "x-feature",
    "x-forebay-served-by",
)
_SECRETS = ("authorization", "cookie", "x-api-key")

# Per field of processing_mode: what is right, and what would happen otherwise.
_MODES = {
    "request_header_mode": (
        ("DEFAULT", "SEND"),
        "the headers go on to the router before the processor has seen anything, and nothing is "
        "admitted",
    ),
    "request_body_mode": (
        ("BUFFERED",),
        "the processor never sees the whole request, by which it decides",
    ),
    "response_header_mode": (
        ("SKIP",),
        "every answer waits for one more message to the processor",
    ),
    "response_body_mode": (
        ("NONE",),
        "every token goes through Python, or the whole answer is held back until it is complete",
    ),
    "response_trailer_mode": (
        ("SEND",),
        "Envoy closes the processor's stream as soon as no phase is left to ask about, and with it "
        "the slot ends, before the answer does (a buffered POST happens to keep it open)",
    ),
}


def modes(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, processor in bootstrap.gateways:
        mode = processor.message.processing_mode
        for field, (right, otherwise) in _MODES.items():
            name = getattr(mode, field).name if mode else ("NONE" if "body" in field else "DEFAULT")
            if name not in right:
                meant = "SEND" if "header" in field else "SKIP"
                yield error(
                    "processing-mode",
                    processor.spot.at(f"processing_mode.{field}"),
                    f"It is {f'DEFAULT ({meant})' if name == 'DEFAULT' else name}: {otherwise}.",
                    f"{field}: {right[-1]}",
                )


def asked_and_obeyed(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, processor in bootstrap.gateways:
        message = processor.message
        action = message.route_cache_action.name
        for field, wrong, otherwise in (
            ("observability_mode", message.observability_mode, "Envoy does not wait for decisions"),
            ("disable_immediate_response", message.disable_immediate_response,
             "every 429, 4xx and list of models of the processor's becomes a 503"),
            ("disable_clear_route_cache", message.disable_clear_route_cache,
             "admitted requests stay on the route that answers 503"),
            ("route_cache_action", action == "RETAIN",
             "RETAIN leaves admitted requests on the route that answers 503"),
        ):  # fmt: skip
            if wrong:
                yield error(
                    "processor-not-obeyed",
                    processor.spot.at(field),
                    f"With it {otherwise}.",
                    f"Remove {field}.",
                )


def failure_mode(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, processor in bootstrap.gateways:
        if not processor.message.failure_mode_allow:
            yield warning(
                "failure-mode-allow",
                processor.spot.at("failure_mode_allow"),
                "When the processor dies, every answer that is being streamed is cut. It protects "
                "nothing: only the admit routes lead to a model.",
                "failure_mode_allow: true",
            )


def mutation_rules(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, processor in bootstrap.gateways:
        if refused := [name for name in _SETS if not _may_set(processor, name)]:
            yield error(
                "mutation-rules",
                processor.spot.at("mutation_rules"),
                f"Envoy ignores what the processor writes to {', '.join(refused)}: "
                + (
                    "no request is admitted."
                    if ADMIT_HEADER in refused
                    else "no answer has a last moment, and the list of pools is not worked through."
                ),
                "mutation_rules: {allow_envoy: true}",
            )


def _may_set(processor: Processor, header: str) -> bool:
    rules = processor.message.mutation_rules
    if rules is None:
        return not header.startswith("x-envoy-")
    if rules.disallow_all:
        return False
    if rules.disallow_expression and regex_matches(rules.disallow_expression.regex, header):
        return False
    if rules.allow_expression and regex_matches(rules.allow_expression.regex, header):
        return True
    return bool(rules.allow_envoy) or not header.startswith("x-envoy-")


def metadata(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, processor in bootstrap.gateways:
        options = processor.message.metadata_options
        namespaces = options.receiving_namespaces if options else None
        received = namespaces.untyped if namespaces else []
        if missing := [name for name in NAMESPACES if name not in received]:
            lost = {
                "forebay": "the tiers cannot rename the model and the log has no tenant",
                "forebay_request": "no tier gets the body's length or the model's name in it",
                "pg": "the order of the pools for a request is not obeyed",
            }
            yield error(
                "metadata-namespaces",
                processor.spot.at("metadata_options.receiving_namespaces.untyped"),
                f"Envoy drops the processor's metadata under {', '.join(missing)}: "
                f"{'; '.join(lost[name] for name in missing)}.",
                "untyped: [forebay, forebay_request, forebay_limits, pg]",
            )


def forwarded_headers(bootstrap: Bootstrap) -> Iterator[Finding]:
    needed = (*_READS, *bootstrap.policy.identity)
    for _, processor in bootstrap.gateways:
        if withheld := [name for name in needed if not _is_forwarded(processor, name)]:
            yield error(
                "header-withheld",
                processor.spot.at("forward_rules"),
                f"The processor decides by {', '.join(withheld)} and is not sent it.",
                "Add to forward_rules.allowed_headers.patterns: "
                + ", ".join(f'{{exact: "{name}"}}' for name in withheld),
            )


def forwarded_secrets(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, processor in bootstrap.gateways:
        if sent := [name for name in _SECRETS if _is_forwarded(processor, name)]:
            yield warning(
                "credentials-forwarded",
                processor.spot.at("forward_rules"),
                f"The processor is sent {', '.join(sent)}, which it has no use for.",
                "Name in forward_rules.allowed_headers only what it reads, as envoy/envoy.yaml "
                "does.",
            )


def _is_forwarded(processor: Processor, header: str) -> bool:
    rules = processor.message.forward_rules
    if rules is None:
        return True
    if rules.disallowed_headers and any(
        matches(pattern, header) for pattern in rules.disallowed_headers.patterns
    ):
        return False
    allowed = rules.allowed_headers
    return allowed is None or any(matches(pattern, header) for pattern in allowed.patterns)


def cluster(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, processor in bootstrap.gateways:
        name = processor.cluster
        found = bootstrap.clusters.get(name) if name else None
        if found is None or not found.hosts:
            what = "has no endpoint" if found else "is not among static_resources.clusters"
            yield error(
                "processor-cluster",
                processor.spot.at("grpc_service.envoy_grpc.cluster_name"),
                f"The processor's cluster {name!r} {what}."
                if name
                else "No envoy_grpc cluster: the processor does not know where to listen.",
                "Name a static cluster whose endpoint is where the processor listens.",
            )
        elif not found.is_http2:
            yield error(
                "processor-http2",
                found.options_spot.at("explicit_http_config"),
                "gRPC needs HTTP/2; over HTTP/1.1 no call to the processor succeeds.",
                "explicit_http_config: {http2_protocol_options: {}}",
            )


def cluster_limits(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    for _, processor in bootstrap.gateways:
        found = bootstrap.clusters.get(processor.cluster or "")
        if config is None or found is None:
            continue
        slots = sum(pool.all_slots for pool in config.pools.values())
        queues = config.admission.most_waiting * len(config.pools)
        for field in ("max_requests", "max_pending_requests"):
            limit = getattr(found.limits, field, None)
            if (1024 if limit is None else limit) < slots + queues:
                yield error(
                    "processor-limits",
                    found.spot.at(f"circuit_breakers.thresholds.{field}"),
                    f"It is {'1024 (the default)' if limit is None else limit}, and all slots "
                    f"({slots}) and queues ({queues}) hold {slots + queues} exchanges open here; "
                    "above the limit Envoy answers without asking the processor.",
                    f"{field}: 100000",
                )


def retry_policy(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, processor in bootstrap.gateways:
        found = bootstrap.clusters.get(processor.cluster or "")
        service = processor.message.grpc_service
        if found and found.options.retry_policy and service and service.retry_policy:
            yield warning(
                "processor-retries-twice",
                processor.spot.at("grpc_service.retry_policy"),
                f"Envoy obeys the one of the cluster {processor.cluster}, and reads this one anew "
                "for each request.",
                f"{RENEW} or remove it.",
            )
        if found is not None and found.options.retry_policy is None:
            yield warning(
                "processor-retry-policy",
                found.options_spot.at("retry_policy"),
                "While a processor restarts or is killed, requests that it holds or is about to "
                "get fail, though another (or the same, a moment later) could take them; and what "
                "the access log tells meanwhile is lost. (At the filter's grpc_service it would "
                "be for requests alone, and be read anew for each.)",
                "retry_policy: {retry_on: 'connect-failure,refused-stream,reset,unavailable', "
                "num_retries: 2}",
            )


RULES = (
    modes,
    asked_and_obeyed,
    failure_mode,
    mutation_rules,
    metadata,
    forwarded_headers,
    forwarded_secrets,
    cluster,
    cluster_limits,
    retry_policy,
)
