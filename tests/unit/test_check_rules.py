"""Each rule of `forebay check`: one thing broken in a sound document gives that finding, at its
place, and no other."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from extproc.check import check
from tests.unit.test_check_kit import GOOGLE, Document, Edit, reference, sound

Place = Callable[[Document], str]


class Case(NamedTuple):
    rule: str
    edit: Edit
    place: Place | str
    severity: str = "error"
    words: tuple[str, ...] = ()
    """That stand in its reason: the numbers and names of the case."""


def one(case: Case) -> str:
    return case.rule


def found(edit: Edit) -> tuple[Document, list[Any]]:
    document = sound()
    edit(document)
    return document, check(document.data)


def put(where: Callable[[Document], Any], **values: Any) -> Edit:
    return lambda d: where(d).update(copy.deepcopy(values))


def drop(where: Callable[[Document], Any], *keys: str) -> Edit:
    def edit(document: Document) -> None:
        for key in keys:
            del where(document)[key]

    return edit


def both(*edits: Edit) -> Edit:
    return lambda d: [edit(d) for edit in edits]


def limited(d: Document) -> None:
    d.policy["tenants"]["acme"] = {"tokens_per_minute": 100_000}


def ext_proc(d: Document) -> Any:
    return d.ext_proc


def door(d: Document) -> Any:
    return d.door


def action(name: str) -> Callable[[Document], Any]:
    return lambda d: d.route(name)["route"]


def retry(name: str) -> Callable[[Document], Any]:
    return lambda d: d.route(name)["route"]["retry_policy"]


def specifier(name: str) -> Callable[[Document], Any]:
    def where(d: Document) -> Any:
        return d.route(name)["route"]["inline_cluster_specifier_plugin"]["extension"][
            "typed_config"
        ]

    return where


def pool(name: str) -> Callable[[Document], Any]:
    return lambda d: d.policy["pools"][name]


def address(d: Document, name: str) -> Any:
    (locality,) = d.cluster(name)["load_assignment"]["endpoints"]
    return locality["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]


def no_match(name: str) -> Edit:
    return lambda d: d.route(name)["match"].pop("headers")


def add_route(**route: Any) -> Edit:
    new = {"name": "new", "match": {"prefix": "/new"}, **route}
    return lambda d: d.host["routes"].insert(0, copy.deepcopy(new))


def to_pool(**more: Any) -> Edit:
    return add_route(route={"cluster": "large", **more})


def affine(d: Document) -> None:
    d.policy["routing"]["prefix_affinity"] = True


def ring(name: str) -> Edit:
    bound = {"consistent_hashing_lb_config": {"hash_balance_factor": 150}}
    return lambda d: d.cluster(name).update(lb_policy="RING_HASH", common_lb_config=bound)


def embedder() -> Edit:
    """The pool large serves embeddings, and small is all that generates."""

    def edit(d: Document) -> None:
        d.policy["pools"]["large"]["serves"] = "embeddings"
        d.policy["routing"] = {"small": "small", "large": "small"}

    return edit


def old_regex(name: str) -> Edit:
    """That of a config from before there were embeddings."""

    def edit(d: Document) -> None:
        regex = d.route(name)["match"]["safe_regex"]
        assert "|embeddings" in regex["regex"]
        regex["regex"] = regex["regex"].replace("|embeddings", "")

    return edit


def move_last(kind: str) -> Edit:
    """To the place before the router."""

    def edit(d: Document) -> None:
        filters = d.door["http_filters"]
        filters.insert(len(filters) - 2, filters.pop(d.index(kind)))

    return edit


def counting_lua(d: Document) -> Any:
    return d.door["http_filters"][-2]["typed_config"]["default_source_code"]


def json_parser(namespace: str) -> Any:
    """The filter that counted JSON answers in an earlier version, if it says our namespace."""
    rules = [
        {
            "selectors": [{"key": "usage"}, {"key": "prompt_tokens"}],
            "on_present": {"metadata_namespace": namespace, "key": "prompt_tokens"},
        }
    ]
    of = f"{GOOGLE}.extensions.filters.http.json_to_metadata.v3.JsonToMetadata"
    return {
        "name": "envoy.filters.http.json_to_metadata",
        "typed_config": {"@type": of, "response_rules": {"rules": rules}},
    }


def forwarded_without(header: str) -> Edit:
    def edit(d: Document) -> None:
        patterns = d.ext_proc["forward_rules"]["allowed_headers"]["patterns"]
        patterns.remove({"exact": header})

    return edit


def strips_without(word: str) -> Edit:
    def edit(d: Document) -> None:
        config = d.door["early_header_mutation_extensions"][0]["typed_config"]
        config["mutations"] = [m for m in config["mutations"] if word not in str(m)]

    return edit


EARLY = "early_header_mutation_extensions"
MODE = "processing_mode"
NEW_ROUTE = "static_resources.listeners[0]...route_config.virtual_hosts[0].routes[0] (new)"

CASES = [
    # --- policy ---------------------------------------------------------------------------------
    Case(
        "policy",
        put(pool("small"), slots=-1),
        "node.metadata.forebay.pools.small.slots",
        words=("must be above 0",),
    ),
    Case("policy", put(pool("small"), speed=9), "node.metadata.forebay.pools.small.speed"),
    Case(
        "pool-cluster",
        lambda d: [
            put(pool("small"))(d),
            d.policy["pools"].update(tiny={"model": "t", "slots": 1}),
            [
                s(d)["priority_groups"].append(
                    {"name": "tiny", "clusters": [{"cluster_name": "tiny", "weight": 1}]}
                )
                for s in (specifier("admit_stream"), specifier("admit_json"))
            ],
        ],
        "node.metadata.forebay.pools.tiny",
        words=("'tiny'", "small, large, forebay"),
    ),
    Case("no-ext-proc", lambda d: d.drop("ExternalProcessor"), lambda d: d.at_door("http_filters")),
    Case(
        "no-overload-manager",
        drop(lambda d: d.data, "overload_manager"),
        "overload_manager",
        "warning",
    ),
    Case(
        "admin-exposed",
        lambda d: d.data["admin"]["address"]["socket_address"].update(address="0.0.0.0"),
        "admin.address",
        "warning",
    ),
    Case(
        "unknown-field",
        put(door, stream_idle_timeouts="9s"),
        lambda d: d.at_door("stream_idle_timeouts"),
        "warning",
    ),
    Case(
        "unreadable",
        put(door, request_headers_timeout=15),
        lambda d: d.at_door("request_headers_timeout"),
    ),
    Case(
        "refused-at-start",
        lambda d: [
            d.cluster("small").update(type="STRICT_DNS"),
            address(d, "small").update(address="gpu 1"),
        ],
        "forebay.pools.small.endpoints.0",
    ),
    # --- the door -------------------------------------------------------------------------------
    Case(
        "tenant-header-believed",
        lambda d: d.drop("ApiKeyAuth"),
        lambda d: d.at_filter("ExternalProcessor").replace(" (", ".typed_config ("),
        "warning",
        ("No auth filter",),
    ),
    Case(
        "tenant-header-believed",
        lambda d: d.filter("ApiKeyAuth")["forwarding"].update(header="x-client"),
        lambda d: d.at_filter("ExternalProcessor").replace(" (", ".typed_config ("),
        "warning",
        ("does not set x-tenant-id",),
    ),
    Case(
        "tenant-header-believed",
        move_last("ApiKeyAuth"),
        lambda d: d.at_filter("ExternalProcessor").replace(" (", ".typed_config ("),
        "warning",
    ),
    Case(
        "user-header-unset",
        lambda d: d.policy["cache"]["exact"].update(scope="user"),
        lambda d: d.at_filter("ExternalProcessor").replace(" (", ".typed_config ("),
        "warning",
        ("sets x-user-id", "not cached"),
    ),
    Case(
        "user-header-unset",
        lambda d: d.policy["cache"].update(semantic={}),
        lambda d: d.at_filter("ExternalProcessor").replace(" (", ".typed_config ("),
        "warning",
        ("sets x-user-id", "not cached"),
    ),
    Case(
        "user-header-believed",
        lambda d: [
            d.policy.update(user_header="x-person"),
            d.policy["tenants"].update(acme={"cache": {"scope": "user"}}),
            d.ext_proc["forward_rules"]["allowed_headers"]["patterns"].append(
                {"exact": "x-person"}
            ),
        ],
        lambda d: d.at_filter("ExternalProcessor").replace(" (", ".typed_config ("),
        "warning",
        ("sets x-person", "believed"),
    ),
    Case(
        "header-withheld",
        lambda d: [
            d.policy["cache"]["exact"].update(scope="user"),
            d.filter("ApiKeyAuth").update(
                {
                    "@type": f"{GOOGLE}.extensions.filters.http.ext_authz.v3.ExtAuthz",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "forebay"}},
                }
            ),
            forwarded_without("x-user-id")(d),
        ],
        lambda d: d.at_ext_proc("forward_rules"),
        words=("by x-user-id and",),
    ),
    Case(
        "auth-fails-open",
        lambda d: [
            d.filter("ApiKeyAuth").update(
                {
                    "@type": f"{GOOGLE}.extensions.filters.http.ext_authz.v3.ExtAuthz",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "forebay"}},
                    "failure_mode_allow": True,
                }
            ),
            d.door["early_header_mutation_extensions"][0]["typed_config"]["mutations"].remove(
                {"remove": "x-tenant-id"}
            ),
        ],
        lambda d: d.at_filter("ExtAuthz"),
        "warning",
        ("failure_mode_allow", "x-tenant-id"),
    ),
    Case(
        "no-local-ratelimit",
        lambda d: d.drop("LocalRateLimit"),
        lambda d: d.at_door("http_filters"),
        "warning",
    ),
    Case(
        "local-reply",
        drop(door, "local_reply_config"),
        lambda d: d.at_door("local_reply_config"),
        "warning",
    ),
    Case(
        "use-remote-address",
        drop(door, "use_remote_address"),
        lambda d: d.at_door("use_remote_address"),
        "warning",
    ),
    Case(
        "normalize-path",
        put(door, normalize_path=False),
        lambda d: d.at_door("normalize_path"),
        "warning",
    ),
    Case(
        "escaped-slashes",
        put(door, path_with_escaped_slashes_action="KEEP_UNCHANGED"),
        lambda d: d.at_door("path_with_escaped_slashes_action"),
        "warning",
    ),
    Case(
        "request-timeout",
        put(door, request_timeout="0s"),
        lambda d: d.at_door("request_timeout"),
        "warning",
    ),
    # --- headers --------------------------------------------------------------------------------
    Case(
        "forebay-headers-kept",
        strips_without("x-forebay-"),
        lambda d: d.at_door(EARLY),
        words=("x-forebay-admit, x-forebay-tier,", "walk past the queue"),
    ),
    Case(
        "forebay-headers-kept",
        lambda d: [
            strips_without("x-forebay-")(d),
            d.door[EARLY][0]["typed_config"]["mutations"].append({"remove": "X-Forebay-Admit"}),
        ],
        lambda d: d.at_door(EARLY),
        words=("own x-forebay-tier, x-forebay-tier-host",),
    ),
    Case("envoy-headers-kept", strips_without("x-envoy-"), lambda d: d.at_door(EARLY)),
    Case("request-id-kept", strips_without("x-request-id"), lambda d: d.at_door(EARLY)),
    Case(
        "request-id-off",
        put(door, generate_request_id=False),
        lambda d: d.at_door("generate_request_id"),
    ),
    # --- the processor --------------------------------------------------------------------------
    *(
        Case(
            "processing-mode",
            lambda d, field=field, value=value: d.ext_proc[MODE].update({field: value}),
            lambda d, field=field: d.at_ext_proc(f"{MODE}.{field}"),
            words=(f"It is {value}",),
        )
        for field, value in (
            ("request_header_mode", "SKIP"),
            ("request_body_mode", "STREAMED"),
            ("request_body_mode", "NONE"),
            ("response_header_mode", "SEND"),
            ("response_body_mode", "STREAMED"),
            ("response_trailer_mode", "SKIP"),
            ("response_trailer_mode", "DEFAULT"),
        )
    ),
    *(
        Case(
            "processor-not-obeyed",
            lambda d, field=field, value=value: d.ext_proc.update({field: value}),
            lambda d, field=field: d.at_ext_proc(field),
        )
        for field, value in (
            ("observability_mode", True),
            ("disable_immediate_response", True),
            ("disable_clear_route_cache", True),
            ("route_cache_action", "RETAIN"),
        )
    ),
    Case(
        "failure-mode-allow",
        drop(ext_proc, "failure_mode_allow"),
        lambda d: d.at_ext_proc("failure_mode_allow"),
        "warning",
    ),
    Case(
        "mutation-rules",
        drop(ext_proc, "mutation_rules"),
        lambda d: d.at_ext_proc("mutation_rules"),
        words=("x-envoy-upstream-rq-timeout-ms, x-envoy-max-retries",),
    ),
    Case(
        "mutation-rules",
        put(ext_proc, mutation_rules={"allow_envoy": True, "disallow_all": True}),
        lambda d: d.at_ext_proc("mutation_rules"),
        words=("x-forebay-admit", "no request is admitted"),
    ),
    Case(
        "metadata-namespaces",
        lambda d: d.ext_proc["metadata_options"]["receiving_namespaces"].update(untyped=["pg"]),
        lambda d: d.at_ext_proc("metadata_options.receiving_namespaces.untyped"),
        words=("under forebay",),
    ),
    Case(
        "metadata-namespaces",
        drop(ext_proc, "metadata_options"),
        lambda d: d.at_ext_proc("metadata_options.receiving_namespaces.untyped"),
        words=("under forebay, forebay_request, pg",),
    ),
    *(
        Case(
            "header-withheld",
            forwarded_without(header),
            lambda d: d.at_ext_proc("forward_rules"),
            words=(f"by {header} and",),
        )
        for header in (
            ":method",
            ":path",
            "content-encoding",
            "x-request-id",
            "x-tenant-id",
            "x-latency-budget-ms",
        )
    ),
    Case(
        "credentials-forwarded",
        drop(ext_proc, "forward_rules"),
        lambda d: d.at_ext_proc("forward_rules"),
        "warning",
        ("authorization",),
    ),
    Case(
        "processor-cluster",
        lambda d: d.cluster("forebay").update(load_assignment={"cluster_name": "forebay"}),
        lambda d: d.at_ext_proc("grpc_service.envoy_grpc.cluster_name"),
        words=("has no endpoint",),
    ),
    Case(
        "processor-http2",
        lambda d: d.options("forebay").update(explicit_http_config={"http_protocol_options": {}}),
        lambda d: d.at_options("forebay", "explicit_http_config"),
    ),
    Case(
        "processor-limits",
        lambda d: d.thresholds("forebay").update(max_requests=100),
        lambda d: d.at_cluster("forebay", "circuit_breakers.thresholds.max_requests"),
        words=("It is 100,", "(48)", "(3000)", "3048"),
    ),
    Case(
        "processor-limits",
        lambda d: [
            d.policy["admission"].update(high_water=2000),
            d.thresholds("forebay").pop("max_pending_requests"),
            [d.thresholds(p).update(max_retries=10_000) for p in ("small", "large")],
        ],
        lambda d: d.at_cluster("forebay", "circuit_breakers.thresholds.max_pending_requests"),
        words=("1024 (the default)", "6048"),
    ),
    Case(
        "processor-retry-policy",
        lambda d: d.options("forebay").pop("retry_policy"),
        lambda d: d.at_options("forebay", "retry_policy"),
        "warning",
    ),
    Case(
        "processor-retries-twice",
        lambda d: d.ext_proc["grpc_service"].update(retry_policy={"num_retries": 2}),
        lambda d: d.at_ext_proc("grpc_service.retry_policy"),
        "warning",
    ),
    # --- times ----------------------------------------------------------------------------------
    Case(
        "message-timeout",
        drop(ext_proc, "message_timeout"),
        lambda d: d.at_ext_proc("message_timeout"),
        words=("0.2s (the default)", "10s"),
    ),
    Case(
        "message-timeout",
        put(ext_proc, message_timeout="10s"),
        lambda d: d.at_ext_proc("message_timeout"),
        words=("waits 10s", "10s (admission.max_wait)"),
    ),
    Case(
        "max-message-timeout",
        lambda d: [
            d.policy["admission"].update(batch={"max_wait": "5m"}),
            put(ext_proc, max_message_timeout="304s")(d),
        ],
        lambda d: d.at_ext_proc("max_message_timeout"),
        words=("It is 304s", "305s (admission.batch.max_wait"),
    ),
    Case(
        "max-message-timeout",
        lambda d: [
            d.policy["admission"].update(batch={"max_wait": "20s"}),
            drop(ext_proc, "max_message_timeout")(d),
        ],
        lambda d: d.at_ext_proc("max_message_timeout"),
        words=("There is none", "25s"),
    ),
    Case(
        "stream-idle-timeout",
        lambda d: [
            d.policy["admission"].update(batch={"max_wait": "5m"}),
            put(door, stream_idle_timeout="310s")(d),
        ],
        lambda d: d.at_door("stream_idle_timeout"),
        words=("310s", "max_message_timeout"),
    ),
    Case(
        "stream-idle-timeout",
        put(door, stream_idle_timeout="15s"),
        lambda d: d.at_door("stream_idle_timeout"),
        words=("15s",),
    ),
    Case(
        "stream-idle-timeout",
        lambda d: [
            put(ext_proc, message_timeout="301s")(d),
            d.door.pop("stream_idle_timeout"),
        ],
        lambda d: d.at_door("stream_idle_timeout"),
        words=("300s",),
    ),
    Case(
        "stream-idle-timeout",
        lambda d: [
            d.route("not_admitted").pop("direct_response"),
            d.route("not_admitted").update(route={"cluster": "sorry", "idle_timeout": "5s"}),
        ],
        lambda d: d.at_route("not_admitted", "route.idle_timeout"),
        words=("5s",),
    ),
    Case(
        "held-stream-duration",
        lambda d: d.door["common_http_protocol_options"].update(max_stream_duration="12s"),
        lambda d: d.at_door("common_http_protocol_options.max_stream_duration"),
        words=("12s", "15s"),
    ),
    Case(
        "max-stream-duration",
        drop(action("admit_json"), "max_stream_duration"),
        lambda d: d.at_route("admit_json", "route.max_stream_duration"),
    ),
    Case(
        "max-stream-duration",
        put(action("admit_stream"), max_stream_duration={"max_stream_duration": "0s"}),
        lambda d: d.at_route("admit_stream", "route.max_stream_duration"),
    ),
    Case(
        "max-stream-duration-short",
        put(action("admit_stream"), max_stream_duration={"max_stream_duration": "122s"}),
        lambda d: d.at_route("admit_stream", "route.max_stream_duration"),
        words=("122s", "132s"),
    ),
    Case(
        "max-stream-duration-short",
        lambda d: [
            put(action("admit_stream"), max_stream_duration={"max_stream_duration": "400s"})(d),
            d.policy["admission"].update(batch={"max_wait": "5m"}),
        ],
        lambda d: d.at_route("admit_stream", "route.max_stream_duration"),
        words=("400s", "422s"),
    ),
    *(
        Case(
            "cluster-stream-duration",
            lambda d, name=name: d.options(name).update(
                common_http_protocol_options={"max_stream_duration": "60s"}
            ),
            lambda d, name=name: d.at_options(
                name, "common_http_protocol_options.max_stream_duration"
            ),
            words=("60s", longest, word),
        )
        for name, longest, word in (
            ("small", "122s", "answers are cut"),
            ("forebay", "132s", "the slot"),
        )
    ),
    Case(
        "json-idle-timeout",
        put(action("admit_json"), idle_timeout="30s"),
        lambda d: d.at_route("admit_json", "route.idle_timeout"),
        words=("30s",),
    ),
    Case(
        "json-idle-timeout",
        drop(action("admit_json"), "idle_timeout"),
        lambda d: d.at_route("admit_json", "route.idle_timeout"),
        words=("330s, the stream_idle_timeout",),
    ),
    Case(
        "stream-idle-short",
        put(action("admit_stream"), idle_timeout="10s"),
        lambda d: d.at_route("admit_stream", "route.idle_timeout"),
        "warning",
        ("10s",),
    ),
    # --- routes: it fails closed ----------------------------------------------------------------
    Case("unadmitted-route", to_pool(), NEW_ROUTE, words=("large", "failure_mode_allow is true")),
    Case(
        "unadmitted-route",
        add_route(route={"weighted_clusters": {"clusters": [{"name": "small", "weight": 1}]}}),
        NEW_ROUTE,
        words=("small",),
    ),
    Case(
        "unadmitted-route",
        add_route(route={"cluster_header": "x-cluster"}),
        NEW_ROUTE,
        words=("any cluster",),
    ),
    Case(
        "unadmitted-route",
        lambda d: [
            d.data["static_resources"]["clusters"].append(
                {
                    "name": "either",
                    "lb_policy": "CLUSTER_PROVIDED",
                    "cluster_type": {
                        "name": "envoy.clusters.aggregate",
                        "typed_config": {
                            "@type": f"{GOOGLE}.extensions.clusters.aggregate.v3.ClusterConfig",
                            "clusters": ["small", "large"],
                        },
                    },
                }
            ),
            add_route(route={"cluster": "either"})(d),
        ],
        NEW_ROUTE,
        words=("large, small",),
    ),
    Case(
        "unadmitted-route",
        add_route(
            match={
                "prefix": "/",
                "headers": [
                    {
                        "name": "x-forebay-admit",
                        "string_match": {"exact": "stream"},
                        "invert_match": True,
                    }
                ],
            },
            route={"cluster": "large"},
        ),
        NEW_ROUTE,
    ),
    Case(
        "unadmitted-route",
        both(add_route(), lambda d: d.host["routes"][0].update(route=action("admit_json")(d))),
        NEW_ROUTE,
        words=("large, small",),
    ),
    Case(
        "unadmitted-route",
        lambda d: d.data["static_resources"]["listeners"].append(
            {
                "name": "side",
                "filter_chains": [
                    {
                        "filters": [
                            {
                                "name": "tcp",
                                "typed_config": {
                                    "@type": f"{GOOGLE}.extensions.filters.network.tcp_proxy.v3"
                                    ".TcpProxy",
                                    "stat_prefix": "side",
                                    "cluster": "large",
                                },
                            }
                        ]
                    }
                ],
            }
        ),
        "static_resources.listeners[1].filter_chains[0].filters[0] (tcp)",
    ),
    Case(
        "unadmitted-route",
        lambda d: d.data["static_resources"]["listeners"].append(
            {
                "name": "side",
                "filter_chains": [
                    {
                        "filters": [
                            {
                                "name": "http",
                                "typed_config": {
                                    "@type": d.door["@type"],
                                    "stat_prefix": "side",
                                    "route_config": {
                                        "virtual_hosts": [
                                            {
                                                "name": "all",
                                                "domains": ["*"],
                                                "routes": [
                                                    {
                                                        "match": {"prefix": "/"},
                                                        "route": {"cluster": "small"},
                                                    }
                                                ],
                                            }
                                        ]
                                    },
                                },
                            }
                        ]
                    }
                ],
            }
        ),
        "static_resources.listeners[1]...route_config.virtual_hosts[0].routes[0]",
        words=("no processor is asked",),
    ),
    Case(
        "mirrored-to-pool",
        put(action("admit_json"), request_mirror_policies=[{"cluster": "large"}]),
        lambda d: d.at_route("admit_json", "request_mirror_policies"),
        words=("large",),
    ),
    Case(
        "routes-elsewhere",
        lambda d: d.door["route_config"].update(vhds={"config_source": {"ads": {}}}),
        lambda d: d.at_door("route_config.vhds"),
        "warning",
    ),
    Case(
        "admit-route-missing",
        lambda d: d.host["routes"].remove(d.route("admit_json")),
        lambda d: d.at_door("route_config"),
        words=("x-forebay-admit: json",),
    ),
    Case(
        "not-admitted-route",
        lambda d: [d.host["routes"].remove(d.route(n)) for n in ("not_admitted", "no_such_path")],
        lambda d: (
            f"static_resources.listeners[0]...route_config.virtual_hosts[0] ({d.host['name']})"
        ),
        "warning",
    ),
    Case(
        "ext-proc-disabled",
        lambda d: d.host["routes"].remove(d.route("not_admitted")),
        lambda d: d.at_route("no_such_path"),
    ),
    Case(
        "embeddings-route",
        both(embedder(), old_regex("admit_json")),
        lambda d: d.at_door("route_config"),
        words=("large", "x-forebay-admit: json", "/v1/embeddings"),
    ),
    Case(
        "embeddings-route",
        both(embedder(), old_regex("not_admitted")),
        lambda d: d.at_route("no_such_path"),
        words=("large", "/v1/embeddings"),
    ),
    Case(
        "accept-encoding-kept",
        lambda d: [
            put(pool("large"), server="other")(d),
            d.route("admit_stream").update(request_headers_to_remove=["x-forebay-admit"]),
        ],
        lambda d: d.at_route("admit_stream", "request_headers_to_remove"),
        "warning",
        ("large",),
    ),
    # --- prompts that begin alike ---------------------------------------------------------------
    Case(
        "prefix-affinity",
        affine,
        "node.metadata.forebay.routing.prefix_affinity",
        "warning",
    ),
    Case(
        "prefix-affinity",
        both(affine, ring("small"), drop(action("admit_json"), "hash_policy")),
        lambda d: d.at_route("admit_json", "route.hash_policy"),
        "warning",
    ),
    Case(
        "prefix-affinity",
        both(
            affine,
            ring("small"),
            lambda d: d.route("admit_json")["request_headers_to_remove"].append("X-Forebay-Prefix"),
        ),
        lambda d: d.at_route("admit_json", "request_headers_to_remove"),
        "warning",
    ),
    Case(
        "prefix-affinity",
        ring("large"),
        lambda d: d.at_cluster("large", "lb_policy"),
        "warning",
        ("large",),
    ),
    Case(
        "prefix-affinity",
        both(affine, ring("small"), lambda d: d.cluster("small").pop("common_lb_config")),
        lambda d: d.at_cluster("small", "common_lb_config"),
        "warning",
        ("small",),
    ),
    # --- limits ---------------------------------------------------------------------------------
    Case(
        "limits-not-told",
        both(
            limited,
            lambda d: d.ext_proc["metadata_options"]["receiving_namespaces"]["untyped"].remove(
                "forebay_limits"
            ),
        ),
        lambda d: d.at_ext_proc("metadata_options.receiving_namespaces.untyped"),
        "warning",
    ),
    Case(
        "limits-not-told",
        both(
            limited,
            lambda d: d.route("admit_json").update(
                response_headers_to_add=d.route("admit_json")["response_headers_to_add"][:-1]
            ),
        ),
        lambda d: d.at_route("admit_json", "response_headers_to_add"),
        "warning",
        ("no x-ratelimit-reset-tokens.",),
    ),
    # --- retries --------------------------------------------------------------------------------
    Case(
        "retry-budget",
        lambda d: d.thresholds("small").update(retry_budget={"min_retry_concurrency": 10}),
        lambda d: d.at_cluster("small", "circuit_breakers.thresholds.retry_budget"),
    ),
    Case(
        "max-retries",
        lambda d: d.thresholds("large").update(max_retries=3047),
        lambda d: d.at_cluster("large", "circuit_breakers.thresholds.max_retries"),
        words=("3047", "small, large", "3048"),
    ),
    Case(
        "max-retries",
        drop(lambda d: d.cluster("small"), "circuit_breakers"),
        lambda d: d.at_cluster("small", "circuit_breakers.thresholds.max_retries"),
        words=("3 (the default)",),
    ),
    Case(
        "per-try-timeout",
        put(retry("admit_stream"), per_try_timeout="5s"),
        lambda d: d.at_route("admit_stream", "route.retry_policy.per_try_timeout"),
    ),
    Case(
        "per-try-idle-timeout",
        put(retry("admit_json"), per_try_idle_timeout="5s"),
        lambda d: d.at_route("admit_json", "route.retry_policy.per_try_idle_timeout"),
    ),
    Case(
        "per-try-idle-timeout",
        put(retry("admit_stream"), per_try_idle_timeout="5s"),
        lambda d: d.at_route("admit_stream", "route.retry_policy.per_try_idle_timeout"),
        "warning",
    ),
    Case(
        "hedging",
        put(action("admit_stream"), hedge_policy={"hedge_on_per_try_timeout": True}),
        lambda d: d.at_route("admit_stream", "route.hedge_policy"),
    ),
    Case(
        "retry-on",
        put(retry("admit_json"), retry_on="retriable-status-codes,reset"),
        lambda d: d.at_route("admit_json", "route.retry_policy.retry_on"),
        words=("an answer of 5xx",),
    ),
    Case(
        "retry-on",
        drop(action("admit_json"), "retry_policy"),
        lambda d: d.at_route("admit_json", "route.retry_policy.retry_on"),
    ),
    Case(
        "retry-429",
        put(retry("admit_json"), retriable_status_codes=[409]),
        lambda d: d.at_route("admit_json", "route.retry_policy.retriable_status_codes"),
        "warning",
    ),
    Case(
        "refresh-cluster-on-retry",
        drop(retry("admit_json"), "refresh_cluster_on_retry"),
        lambda d: d.at_route("admit_json", "route.retry_policy.refresh_cluster_on_retry"),
    ),
    Case(
        "priority-groups",
        lambda d: specifier("admit_stream")(d)["priority_groups"].pop(0),
        lambda d: d.at_route(
            "admit_stream", "route.inline_cluster_specifier_plugin.priority_groups"
        ),
        words=("small is not",),
    ),
    Case(
        "priority-groups",
        lambda d: [
            action("admit_stream")(d).pop("inline_cluster_specifier_plugin"),
            action("admit_stream")(d).update(cluster="small"),
        ],
        lambda d: d.at_route("admit_stream", "route.inline_cluster_specifier_plugin"),
    ),
    Case(
        "priority-group-cluster",
        lambda d: specifier("admit_stream")(d)["priority_groups"][0]["clusters"][0].update(
            cluster_name="large"
        ),
        lambda d: d.at_route(
            "admit_stream", "route.inline_cluster_specifier_plugin.priority_groups (small)"
        ),
    ),
    Case(
        "priority-group-override",
        drop(specifier("admit_json"), "override_metadata_namespace"),
        lambda d: d.at_route(
            "admit_json", "route.inline_cluster_specifier_plugin.override_metadata_namespace"
        ),
    ),
    # --- pools ----------------------------------------------------------------------------------
    *(
        Case(
            "pool-limits",
            lambda d, field=field: d.thresholds("small").update({field: 31}),
            lambda d, field=field: d.at_cluster("small", f"circuit_breakers.thresholds.{field}"),
            words=("It is 31", "32 slots"),
        )
        for field in ("max_requests", "max_pending_requests", "max_connections")
    ),
    Case(
        "pool-empty",
        lambda d: d.cluster("small")["load_assignment"].update(endpoints=[]),
        lambda d: d.at_cluster("small", "load_assignment.endpoints"),
    ),
    Case(
        "pool-original-dst",
        lambda d: d.cluster("small").update(type="ORIGINAL_DST"),
        lambda d: d.at_cluster("small", "type"),
    ),
    Case(
        "static-hostname",
        lambda d: address(d, "large").update(address="gpu-1.local"),
        lambda d: d.at_cluster("large", "type"),
        words=("'gpu-1.local'",),
    ),
    Case(
        "tier-header",
        lambda d: d.options("large")["http_filters"][0]["typed_config"]["mutations"][
            "request_mutations"
        ][0]["append"]["header"].update(value="small"),
        lambda d: d.at_options("large", "http_filters"),
        words=("is set to small",),
    ),
    Case(
        "tier-header",
        lambda d: d.options("large")["http_filters"].pop(0),
        lambda d: d.at_options("large", "http_filters"),
        words=("is not set",),
    ),
    Case(
        "tier-lua",
        lambda d: d.options("large")["http_filters"].pop(1),
        lambda d: d.at_options("large", "http_filters"),
        words=("is missing",),
    ),
    Case(
        "tier-lua",
        lambda d: d.options("large")["http_filters"].insert(
            0, d.options("large")["http_filters"].pop(1)
        ),
        lambda d: d.at_options("large", "http_filters"),
        words=("before the tier header",),
    ),
    # --- bodies ---------------------------------------------------------------------------------
    Case(
        "body-limit",
        drop(lambda d: d.listener, "per_connection_buffer_limit_bytes"),
        "static_resources.listeners[0].per_connection_buffer_limit_bytes (gateway)",
        words=("1 MiB (the default)", "16.0625 MiB"),
    ),
    Case(
        "body-limit",
        both(
            drop(lambda d: d.listener, "per_connection_buffer_limit_bytes"),
            drop(lambda d: d.host, "request_body_buffer_limit"),
        ),
        "static_resources.listeners[0].per_connection_buffer_limit_bytes (gateway)",
        words=("1 MiB (the default)",),
    ),
    Case(
        "body-limit",
        put(lambda d: d.host, request_body_buffer_limit=2**25 + 2**24),
        "static_resources.listeners[0].per_connection_buffer_limit_bytes (gateway)",
        words=("16.0625 MiB", "48 MiB"),
    ),
    Case(
        "body-above-grpc-limit",
        both(
            put(lambda d: d.listener, per_connection_buffer_limit_bytes=2**25),
            put(lambda d: d.host, request_body_buffer_limit=2**25),
        ),
        "static_resources.listeners[0].per_connection_buffer_limit_bytes (gateway)",
        words=("32 MiB",),
    ),
    Case(
        "retry-body-limit",
        lambda d: d.route("admit_stream").update(request_body_buffer_limit=2**20),
        lambda d: d.at_route("admit_stream", "request_body_buffer_limit"),
        words=("16.0625 MiB", "1 MiB"),
    ),
    # --- answers --------------------------------------------------------------------------------
    Case("access-log", drop(door, "access_log"), lambda d: d.at_door("access_log")),
    Case(
        "access-log",
        lambda d: d.log["grpc_service"]["envoy_grpc"].update(cluster_name="small"),
        lambda d: d.at_door("access_log"),
    ),
    Case(
        "pool-not-told",
        lambda d: d.route("admit_json").update(
            response_headers_to_add=[
                told
                for told in d.route("admit_json")["response_headers_to_add"]
                if told["header"]["key"] != "x-forebay-served-by"
            ]
        ),
        lambda d: d.at_route("admit_json", "response_headers_to_add"),
    ),
    Case(
        "access-log-twice",
        lambda d: d.door["access_log"].append(copy.deepcopy(d.door["access_log"][0])),
        "static_resources.listeners[0]...access_log[1] (envoy.access_loggers.open_telemetry)",
    ),
    Case(
        "access-log-body",
        lambda d: d.log["body"].clear(),
        "static_resources.listeners[0]...access_log[0].typed_config.body "
        "(envoy.access_loggers.open_telemetry)",
        words=("line 1 is missing where %DYNAMIC_METADATA(forebay:kind)% is due",),
    ),
    Case(
        "access-log-body",
        lambda d: d.log["body"].update(
            string_value=d.log["body"]["string_value"].replace(
                "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:us)%", "%RESPONSE_DURATION%"
            )
        ),
        "static_resources.listeners[0]...access_log[0].typed_config.body "
        "(envoy.access_loggers.open_telemetry)",
        words=("line 19 is %RESPONSE_DURATION% where",),
    ),
    Case(
        "json-uncounted",
        lambda d: counting_lua(d).update(inline_string="-- an earlier version's: facts.uncounted"),
        lambda d: d.at_door("http_filters"),
    ),
    Case(
        "json-parsed-whole",
        lambda d: d.door["http_filters"].insert(-1, json_parser("llm")),
        "static_resources.listeners[0]...http_filters[6] (envoy.filters.http.json_to_metadata)",
        "warning",
    ),
    Case(
        "json-parsed-whole",
        both(
            lambda d: counting_lua(d).update(inline_string="-- earlier: facts.uncounted"),
            lambda d: d.door["http_filters"].insert(-1, json_parser("llm")),
        ),
        "static_resources.listeners[0]...http_filters[6] (envoy.filters.http.json_to_metadata)",
        "warning",
    ),
    Case("sse-to-metadata", lambda d: d.drop("SseToMetadata"), lambda d: d.at_door("http_filters")),
    Case(
        "token-keys",
        lambda d: d.filter("SseToMetadata")["response_rules"]["content_parser"]["typed_config"][
            "rules"
        ][0]["rule"]["on_present"].update(metadata_namespace="other"),
        lambda d: d.at_filter("SseToMetadata", "response_rules"),
        words=("prompt_tokens", "streamed"),
    ),
    Case(
        "sse-event-size",
        drop(lambda d: d.filter("SseToMetadata")["response_rules"], "max_event_size"),
        lambda d: d.at_filter("SseToMetadata", "response_rules.max_event_size"),
        "warning",
        ("8192 bytes (the default)",),
    ),
    Case(
        "hide-usage",
        lambda d: d.door["http_filters"].pop(d.index("lua.v3.Lua")),
        lambda d: d.at_door("http_filters"),
        "warning",
    ),
    Case(
        "hide-usage-order",
        move_last("lua.v3.Lua"),
        "static_resources.listeners[0]...http_filters[5] (envoy.filters.http.lua)",
    ),
    Case(
        "plain-event",
        both(
            put(pool("large"), server="other"),
            lambda d: d.door["http_filters"].insert(0, d.door["http_filters"].pop(-2)),
        ),
        lambda d: d.at_filter("SseToMetadata"),
        words=("large",),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=one)
def test_a_broken_part_gives_its_finding_and_no_other(case: Case) -> None:
    document, findings = found(case.edit)
    assert [(f.rule, f.severity) for f in findings] == [(case.rule, case.severity)], findings
    (finding,) = findings
    assert finding.place == (case.place if isinstance(case.place, str) else case.place(document))
    for word in case.words:
        assert word in finding.reason, finding.reason
    assert finding.mend


def test_what_belongs_to_several_rules_gives_all_of_them() -> None:
    _, findings = found(drop(door, EARLY))
    assert {f.rule for f in findings} == {
        "forebay-headers-kept",
        "envoy-headers-kept",
        "request-id-kept",
    }
    _, findings = found(drop(ext_proc, MODE))
    assert {f.mend.partition(":")[0] for f in findings} == {
        "request_body_mode",
        "response_header_mode",
        "response_trailer_mode",
    }
    _, findings = found(lambda d: [no_match("admit_stream")(d)])
    assert {f.rule for f in findings} == {
        "unadmitted-route",
        "admit-route-missing",
    }


def test_keys_that_are_not_seen_are_taken_to_name_the_tenant_not_the_user() -> None:
    def by_user(document: Document) -> set[str]:
        document.policy["cache"].update(semantic={})
        return {finding.rule for finding in check(document.data)}

    assert "user-header-unset" in by_user(reference())
    document = reference()  # where tokens name the tenant, the keys may name the user
    tokens = {
        "@type": f"{GOOGLE}.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": {
            "p": {"claim_to_headers": [{"header_name": "x-tenant-id", "claim_name": "t"}]}
        },
    }
    document.door["http_filters"].insert(
        0, {"name": "envoy.filters.http.jwt_authn", "typed_config": tokens}
    )
    assert "user-header-unset" not in by_user(document)


@pytest.mark.parametrize(
    "edit",
    [
        # A filter of the user's own that parses answers.
        lambda d: d.door["http_filters"].insert(-1, json_parser("mine")),
        # The tenant header comes from a config that is read elsewhere, or from another filter.
        lambda d: d.door["http_filters"][d.index("ApiKeyAuth")].update(
            typed_config={},
            config_discovery={
                "config_source": {"path_config_source": {"path": "/etc/keys.yaml"}},
                "type_urls": [
                    "type.googleapis.com/envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth"
                ],
            },
        ),
        lambda d: d.filter("ApiKeyAuth").update(
            {
                "@type": f"{GOOGLE}.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
                "providers": {
                    "p": {"claim_to_headers": [{"header_name": "X-Tenant-Id", "claim_name": "t"}]}
                },
            }
        ),
        # A route with a value of the admit header that nobody sets reaches nothing.
        lambda d: add_route(
            match={
                "prefix": "/",
                "headers": [{"name": "X-Forebay-Admit", "string_match": {"exact": "other"}}],
            },
            route={"cluster": "large"},
        )(d),
        # Without fallback nothing depends on retries.
        lambda d: [
            d.policy["routing"].update(fallback={}),
            d.thresholds("small").pop("max_retries"),
            d.thresholds("small").update(retry_budget={"min_retry_concurrency": 10}),
            retry("admit_json")(d).pop("refresh_cluster_on_retry"),
        ],
        # A listener limit alone is enough; the clusters' limits do nothing.
        lambda d: [
            d.host.pop("request_body_buffer_limit"),
            d.cluster("small").update(per_connection_buffer_limit_bytes=32768),
        ],
        # The door's own limit stands in for the routes'.
        lambda d: [
            d.door["common_http_protocol_options"].update(max_stream_duration="900s"),
            action("admit_json")(d).pop("max_stream_duration"),
        ],
        # HTTP/2 shares connections.
        lambda d: [
            d.thresholds("small").update(max_connections=1),
            d.options("small").update(explicit_http_config={"http2_protocol_options": {}}),
        ],
        lambda d: address(d, "small").update(address="::1"),
        # A route that another filter chain answers, and one to a cluster that is no pool.
        add_route(route={"cluster": "forebay"}),
        lambda d: d.filter("SseToMetadata")["response_rules"].update(max_event_size=0),
    ],
)
def test_what_is_right_in_another_way_gives_nothing(edit: Edit) -> None:
    _, findings = found(edit)
    assert [f for f in findings if f.rule != "refused-at-start"] == []


def test_a_policy_with_mistakes_does_not_hide_the_rest() -> None:
    _, findings = found(both(put(pool("small"), slots=0), to_pool()))
    assert [f.rule for f in findings] == ["policy", "unadmitted-route"]


def test_of_several_ext_proc_filters_ours_is_judged() -> None:
    def edit(d: Document) -> None:
        other = {
            "@type": f"{GOOGLE}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "other"}},
        }
        d.door["http_filters"].insert(0, {"name": "other", "typed_config": other})

    _, findings = found(edit)
    assert {f.rule for f in findings} <= {"refused-at-start"}


@pytest.mark.parametrize(
    "edit",
    [
        both(affine, ring("small")),
        both(affine, ring("small"), ring("large")),
        both(
            ring("small"),
            *(
                put(action(name), hash_policy=[{"cookie": {"name": "c", "ttl": "0s"}}])
                for name in ("admit_stream", "admit_json")
            ),
        ),
    ],
)
def test_a_ring_that_gets_its_hash_is_sound(edit: Edit) -> None:
    assert found(edit)[1] == []
