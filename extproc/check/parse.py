"""From parsed YAML to the bootstrap that the rules see; nothing in a document makes it raise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from extproc.check.bootstrap import (
    NAMESPACES,
    Bootstrap,
    Cluster,
    Door,
    Filter,
    Policy,
    Processor,
    Route,
    VirtualHost,
)
from extproc.check.reading import Node, Reader, Spot, matches, named, text
from extproc.config import Config, ConfigError, from_document
from extproc.config.tree import dig, items, mapping
from extproc.wire import ADMIT_HEADER, Admit

if TYPE_CHECKING:
    from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation_v3
    from envoy_data_plane.envoy.config.listener import v3 as listener_v3
    from envoy_data_plane.envoy.config.route import v3 as route_v3


def read_policy(document: object) -> Policy:
    top = mapping(document)
    raw, spot = mapping(dig(top, "node", "metadata", "forebay")), Spot("node.metadata.forebay")
    if not raw:
        raw, spot = mapping(top.get("forebay")), Spot("forebay")
    config, problems = None, ()
    try:
        # Alone: what config says about the bootstrap around it is said by rules with a place.
        config = from_document({"forebay": raw} if raw else document).config
    except ConfigError as error:
        problems = tuple(str(error).splitlines())
    except Exception as error:  # config is not made to be given nonsense; a check is
        problems = (f"forebay: cannot be read ({type(error).__name__})",)
    header = text(raw.get("tenant_header")) or Config.model_fields["tenant_header"].default
    pools = tuple(name for name, _ in named(raw.get("pools")))
    user_header = config.user_header if config and config.reads_users else ""
    return Policy(spot, config, problems, pools, header, user_header)


def read(document: object) -> Bootstrap:
    """Never raises for what is in the document, which has to be a tree."""
    top = mapping(document)
    resources = mapping(top.get("static_resources"))
    reader = Reader()
    doors: list[Door] = []
    tcp: list[Filter] = []
    for number, raw in enumerate(items(resources.get("listeners"))):
        name = mapping(raw).get("name")
        spot = Spot("static_resources").item(f"listeners[{number}]", name)
        _read_listener(reader, spot, mapping(raw), doors, tcp)
    clusters: dict[str, Cluster] = {}
    for number, raw in enumerate(items(resources.get("clusters"))):
        name = text(mapping(raw).get("name"))
        spot = Spot("static_resources").item(f"clusters[{number}]", name)
        clusters.setdefault(name, _read_cluster(reader, spot, name, mapping(raw)))
    return Bootstrap(
        policy=read_policy(document),
        raw=top,
        doors=tuple(doors),
        tcp=tuple(tcp),
        clusters=clusters,
        unread=tuple(reader.unread),
    )


def _read_listener(
    reader: Reader, spot: Spot, raw: Node, doors: list[Door], tcp: list[Filter]
) -> None:
    from envoy_data_plane.envoy.config.listener.v3 import Listener

    listener = reader.message(
        Listener, raw, spot, without=("filter_chains", "default_filter_chain")
    )
    chains = [(f"filter_chains[{n}]", c) for n, c in enumerate(items(raw.get("filter_chains")))]
    chains.append(("default_filter_chain", raw.get("default_filter_chain")))
    filters = [
        one
        for where, chain in chains
        for one in _filters(spot.at(where), "filters", mapping(chain).get("filters"))
    ]
    found = [f for f in filters if f.is_a(".http_connection_manager.v3.HttpConnectionManager")]
    for one in found:
        # With one door to a listener the middle of the path says nothing.
        path = f"{spot.path}.." if len(found) == 1 else f"{one.spot.path}.typed_config"
        doors.append(_read_door(reader, Spot(path, spot.name), spot, listener, one.raw))
    tcp += (one for one in filters if one.is_a(".tcp_proxy.v3.TcpProxy"))


def _filters(spot: Spot, field: str, raw: object) -> list[Filter]:
    found: list[Filter] = []
    for number, one in enumerate(items(raw)):
        entry = mapping(one)
        discovery = mapping(entry.get("config_discovery"))
        payload = mapping(entry.get("typed_config"))
        urls = items(discovery.get("type_urls")) if discovery else [payload.get("@type")]
        found.append(
            Filter(
                spot=spot.item(f"{field}[{number}]", entry.get("name")),
                name=text(entry.get("name")),
                types=tuple(text(url) for url in urls) if entry.get("disabled") is not True else (),
                raw=payload,
                elsewhere=bool(discovery),
            )
        )
    return found


def _read_door(
    reader: Reader, spot: Spot, listener_spot: Spot, listener: listener_v3.Listener, raw: Node
) -> Door:
    from envoy_data_plane.envoy.extensions.access_loggers.open_telemetry.v3 import (
        OpenTelemetryAccessLogConfig,
    )
    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
        HttpConnectionManager,
    )
    from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
        HeaderMutation,
    )

    # Those have a place of their own; an rds is told apart by its name alone.
    elsewhere = ("rds", "scoped_routes")
    without = ("http_filters", "route_config", "access_log", *elsewhere)
    strips: list[mutation_v3.HeaderMutation] = []
    for one in _filters(spot, "early_header_mutation_extensions", raw.get(_EARLY)):
        if one.is_a(".early_header_mutation.header_mutation.v3.HeaderMutation"):
            strips += reader.message(HeaderMutation, one.raw, one.spot.at("typed_config")).mutations
    filters = tuple(_filters(spot, "http_filters", raw.get("http_filters")))
    logs = tuple(
        (
            one.spot,
            reader.message(OpenTelemetryAccessLogConfig, one.raw, one.spot.at("typed_config")),
        )
        for one in _filters(spot, "access_log", raw.get("access_log"))
        if one.is_a(".access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig")
    )
    hosts, routes, dynamic = _read_routes(reader, spot.at("route_config"), raw.get("route_config"))
    return Door(
        spot=spot,
        listener_spot=listener_spot,
        listener=listener,
        message=reader.message(HttpConnectionManager, raw, spot, without),
        strips=tuple(strips),
        filters=filters,
        logs=logs,
        processor=_our_processor(reader, filters),
        hosts=hosts,
        routes=routes,
        elsewhere=(*(name for name in elsewhere if raw.get(name) is not None), *dynamic),
    )


_EARLY = "early_header_mutation_extensions"


def _our_processor(reader: Reader, filters: tuple[Filter, ...]) -> Processor | None:
    """Of several ext_proc filters the one that may set our metadata, or whose cluster has our name;
    else the first."""
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ExternalProcessor

    found = [(n, f) for n, f in enumerate(filters) if f.is_a(".ext_proc.v3.ExternalProcessor")]

    def ours(one: Filter) -> bool:
        namespaces = dig(one.raw, "metadata_options", "receiving_namespaces", "untyped")
        cluster = text(dig(one.raw, "grpc_service", "envoy_grpc", "cluster_name"))
        return "forebay" in cluster or any(name in items(namespaces) for name in NAMESPACES)

    if not found:
        return None
    position, one = next(((n, f) for n, f in found if ours(f)), found[0])
    spot = replace(one.spot, path=f"{one.spot.path}.typed_config")
    message = reader.message(ExternalProcessor, one.raw, spot)
    return Processor(spot, one.name, position, message)


def _read_routes(
    reader: Reader, spot: Spot, raw: object
) -> tuple[tuple[VirtualHost, ...], tuple[Route, ...], tuple[str, ...]]:
    from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
    from envoy_data_plane.envoy.config.route.v3 import VirtualHost as Host

    config = mapping(raw)
    if config:
        reader.message(RouteConfiguration, config, spot, without=("virtual_hosts",))
    plugins = {
        text(dig(plugin, "extension", "name")): plugin
        for plugin in items(config.get("cluster_specifier_plugins"))
    }
    per_filter = mapping(config.get("typed_per_filter_config"))
    dynamic = ["route_config.vhds"] if config.get("vhds") is not None else []
    hosts: list[VirtualHost] = []
    routes: list[Route] = []
    for number, value in enumerate(items(config.get("virtual_hosts"))):
        node = mapping(value)
        place = spot.item(f"virtual_hosts[{number}]", node.get("name"))
        message = reader.message(Host, value, place, without=("routes", "matcher"))
        host = VirtualHost(place, message, node, plugins, per_filter)
        hosts.append(host)
        routes += (
            _read_route(reader, place.item(f"routes[{n}]", mapping(route).get("name")), host, route)
            for n, route in enumerate(items(node.get("routes")))
        )
        if node.get("matcher") is not None:
            dynamic.append(f"route_config.virtual_hosts[{number}].matcher")
    return tuple(hosts), tuple(routes), tuple(dynamic)


def _read_route(reader: Reader, spot: Spot, host: VirtualHost, value: object) -> Route:
    from envoy_data_plane.envoy.config.route.v3 import RetryPolicy, RouteAction
    from envoy_data_plane.envoy.config.route.v3 import Route as RouteMessage

    raw = mapping(value)
    message = reader.message(RouteMessage, value, spot, without=("route",))
    action, retry, retry_spot, groups = None, host.message.retry_policy, host.spot, None
    if raw.get("route") is not None:
        action_raw, below = mapping(raw.get("route")), spot.at("route")
        action = reader.message(RouteAction, raw.get("route"), below, without=("retry_policy",))
        retry_spot = below.at("retry_policy")
        if action_raw.get("retry_policy") is not None:
            retry = reader.message(RetryPolicy, action_raw.get("retry_policy"), retry_spot)
        elif retry is not None:
            retry_spot = host.spot.at("retry_policy")
        groups = _priority_groups(action_raw, host.plugins)
    admits = _admits(message.match)
    return Route(spot, host, message, raw, action, retry, retry_spot, groups, admits)


def _priority_groups(action: Node, plugins: Node) -> Node | None:
    """envoy-data-plane 2.2.0 has no PriorityGroupClusterSpecifier: it is read as plain YAML."""
    plugin = action.get("inline_cluster_specifier_plugin")
    if plugin is None:
        plugin = plugins.get(text(action.get("cluster_specifier_plugin")))
    payload = mapping(dig(plugin, "extension", "typed_config"))
    named_so = text(payload.get("@type")).endswith(".PriorityGroupClusterSpecifier")
    return payload if named_so else None


def _admits(match: route_v3.RouteMatch | None) -> tuple[Admit, ...] | None:
    """What a matcher on the admit header lets pass, if it lets no request pass that has none."""
    both: tuple[Admit, ...] = ("stream", "json")
    for matcher in match.headers if match else []:
        if matcher.name.lower() != ADMIT_HEADER or matcher.invert_match:
            continue
        if matcher.present_match:
            return None if matcher.treat_missing_header_as_empty else both
        if matcher.exact_match:
            return tuple(value for value in both if value == matcher.exact_match)
        if matcher.string_match and not matches(matcher.string_match, ""):
            return tuple(value for value in both if matches(matcher.string_match, value))
    return None


def _read_cluster(reader: Reader, spot: Spot, name: str, raw: Node) -> Cluster:
    from envoy_data_plane.envoy.config.cluster.v3 import Cluster as ClusterMessage
    from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions

    key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options = dig(raw, "typed_extension_protocol_options", key)
    options_spot = spot.at("typed_extension_protocol_options..")
    return Cluster(
        spot=spot,
        name=name,
        message=reader.message(ClusterMessage, raw, spot),
        raw=raw,
        options_spot=options_spot,
        options=reader.message(HttpProtocolOptions, options, options_spot, ("http_filters",)),
        filters=tuple(_filters(options_spot, "http_filters", dig(options, "http_filters"))),
    )
