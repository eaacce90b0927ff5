"""Admission fails closed by construction: only routes with the admit header lead to models."""

from collections.abc import Iterator

from extproc.check.bootstrap import EMBEDDINGS_PATH, Bootstrap, Processor, Route, path_matches
from extproc.check.findings import Finding, error, warning
from extproc.check.reading import Node, text
from extproc.config.tree import mapping
from extproc.wire import ADMIT_HEADER


def unadmitted_route(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.doors:
        for route in door.routes:
            pools = bootstrap.pools_behind(route)
            if not pools or route.admits is not None:
                continue
            where = "any cluster" if "*" in pools else ", ".join(pools)
            processor = door.processor
            if processor is None:
                when = "here no processor is asked at all"
            elif processor.message.failure_mode_allow:
                when = "failure_mode_allow is true, so all do when the processor is down"
            else:
                when = "a processor that ends a stream without an answer lets it through"
            yield error(
                "unadmitted-route",
                route.spot,
                f"It leads to {where} and does not ask for {ADMIT_HEADER}: requests reach the "
                f"models past slots, queue and tenants ({when}).",
                f"match.headers: [{{name: {ADMIT_HEADER}, string_match: {{exact: stream}}}}] and "
                "the same for json; let the route for everything else answer 503.",
            )
    for proxy in bootstrap.tcp:
        if pools := bootstrap.pools_of(proxy):
            yield error(
                "unadmitted-route",
                proxy.spot,
                f"This TCP proxy leads to {', '.join(pools)}: connections reach the models past "
                "the processor.",
                "Remove it.",
            )


def mirrored(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.doors:
        for route in door.routes:
            if pools := bootstrap.pools_mirrored(route):
                yield error(
                    "mirrored-to-pool",
                    route.spot.at("request_mirror_policies"),
                    f"Every request is sent to {', '.join(pools)} once more, without a slot there.",
                    "Mirror to a cluster that is no pool.",
                )


def routes_elsewhere(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door in bootstrap.doors:
        for field in door.elsewhere:
            yield warning(
                "routes-elsewhere",
                door.spot.at(field),
                "These routes are not in this file or not in a form that is read here: nothing "
                "says that they lead to no pool unadmitted.",
                "Use route_config with plain routes, or see to it that each asks for "
                f"{ADMIT_HEADER}.",
            )


def admit_route_missing(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, _ in bootstrap.gateways:
        if door.elsewhere:
            continue
        for kind in ("stream", "json"):
            if not any(kind in (route.admits or ()) for route in door.admit_routes):
                yield error(
                    "admit-route-missing",
                    door.spot.at("route_config"),
                    f"No route matches {ADMIT_HEADER}: {kind}. The processor admits a "
                    f"{'streamed' if kind == 'stream' else 'JSON'} request with it, which then "
                    "reaches no model.",
                    f"Take the route admit_{kind} from envoy/envoy.yaml.",
                )


def not_admitted_route(bootstrap: Bootstrap) -> Iterator[Finding]:
    for door, processor in bootstrap.gateways:
        hosts = {id(route.host): route.host for route in door.admit_routes}
        for host in hosts.values():
            first = door.first_route(host)
            if first is None:
                yield warning(
                    "not-admitted-route",
                    host.spot,
                    "No route takes a request that is not admitted: when the processor is down "
                    "clients get a 404, which they do not try again.",
                    "Take the route not_admitted from envoy/envoy.yaml: a JSON 503 with "
                    "retry-after.",
                )
            elif where := _processor_disabled(first, processor):
                yield error(
                    "ext-proc-disabled",
                    first.spot if where == "route" else host.spot,
                    "Requests for a model stand on this route until they are admitted, and here "
                    "the processor is disabled: none is ever admitted.",
                    f"Remove disabled: true of {processor.name} in typed_per_filter_config.",
                )


def embeddings_routes(bootstrap: Bootstrap) -> Iterator[Finding]:
    """Where a pool serves embeddings, both routes that a request for them takes."""
    config = bootstrap.policy.config
    if config is None or not (pools := config.pools_that("embeddings")):
        return
    serve = f"Embeddings are served by {', '.join(pools)}"
    for door, processor in bootstrap.gateways:
        if door.elsewhere or not door.admit_routes:
            continue
        admits = [
            route
            for route in door.admit_routes
            if "json" in (route.admits or ())
            and route.message.match is not None
            and path_matches(route.message.match, EMBEDDINGS_PATH)
        ]
        if not admits:
            yield error(
                "embeddings-route",
                door.spot.at("route_config"),
                f"{serve}, and no route with {ADMIT_HEADER}: json matches "
                f"{EMBEDDINGS_PATH}: such requests are admitted and reach no model.",
                'The regex of admit_json: "/v1/((chat/)?completions|embeddings)"',
            )
        for host in {id(route.host): route.host for route in admits}.values():
            first = door.first_route(host, EMBEDDINGS_PATH)
            if first is not None and _processor_disabled(first, processor):
                yield error(
                    "embeddings-route",
                    first.spot,
                    f"{serve}, and requests to {EMBEDDINGS_PATH} stand on this route "
                    "until they are admitted, where the processor is disabled: none ever is.",
                    'The regex of not_admitted: "/v1/((chat/)?completions|embeddings|models)"',
                )


def _processor_disabled(route: Route, processor: Processor) -> str:
    """The most specific config for the filter wins."""
    levels: tuple[tuple[str, Node], ...] = (
        ("route", mapping(route.raw.get("typed_per_filter_config"))),
        ("host", mapping(route.host.raw.get("typed_per_filter_config"))),
        ("config", route.host.per_filter),
    )
    for level, configs in levels:
        if processor.name in configs:
            own = mapping(configs[processor.name])
            return level if own.get("disabled") is True else ""
    return ""


def compressed_answers(bootstrap: Bootstrap) -> Iterator[Finding]:
    """Of a server that is not vLLM an answer may come compressed, if the client allows it."""
    config = bootstrap.policy.config
    others = (
        [name for name, pool in config.pools.items() if pool.server != "vllm"] if config else []
    )
    if not others:
        return
    for door in bootstrap.model_doors:
        for route in door.admit_routes:
            removed = (
                *route.message.request_headers_to_remove,
                *route.host.message.request_headers_to_remove,
            )
            if "accept-encoding" not in (text(name).lower() for name in removed):
                yield warning(
                    "accept-encoding-kept",
                    route.spot.at("request_headers_to_remove"),
                    f"{', '.join(others)} may answer compressed if the client offers it; then "
                    "Envoy counts no tokens and hides no usage chunk.",
                    "Add accept-encoding to request_headers_to_remove.",
                )


RULES = (
    unadmitted_route,
    mirrored,
    routes_elsewhere,
    admit_route_missing,
    not_admitted_route,
    embeddings_routes,
    compressed_answers,
)
