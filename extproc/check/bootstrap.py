"""An Envoy bootstrap as the rules see it: the policy, the doors, their filters and routes, the
clusters. Each thing knows its place. Only what stands in the file is seen, not what an xDS server
would add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.check.reading import Node, Spot, Unread, named, regex_matches, text
from extproc.config import Config
from extproc.config.tree import dig, items, mapping
from extproc.wire import Admit

if TYPE_CHECKING:
    from envoy_data_plane.envoy.config.cluster import v3 as cluster_v3
    from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation_v3
    from envoy_data_plane.envoy.config.core import v3 as core_v3
    from envoy_data_plane.envoy.config.listener import v3 as listener_v3
    from envoy_data_plane.envoy.config.route import v3 as route_v3
    from envoy_data_plane.envoy.extensions.access_loggers.open_telemetry import v3 as log_v3
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc_v3
    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import (
        v3 as hcm_v3,
    )
    from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstream_v3

MODEL_PATH = "/v1/chat/completions"
EMBEDDINGS_PATH = "/v1/embeddings"

NAMESPACES = ("forebay", "forebay_request", "pg")
"""Metadata that the processor sets: facts for filters and log, and the list of pools."""


@dataclass(frozen=True, slots=True)
class Policy:
    spot: Spot
    config: Config | None
    """None: `problems` says why."""
    problems: tuple[str, ...]
    pools: tuple[str, ...]
    """Their names, also where the policy has problems."""
    tenant_header: str
    user_header: str
    """Empty where nothing is cached by user."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The headers that say who asks, as far as anything is decided by them."""
        return (self.tenant_header, self.user_header) if self.user_header else (self.tenant_header,)


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter, HTTP or network, or an access logger. `raw`: its typed_config."""

    spot: Spot
    name: str
    types: tuple[str, ...]
    raw: Node
    elsewhere: bool
    """Its config comes by config_discovery and is not seen here."""

    def is_a(self, suffix: str) -> bool:
        return any(kind.endswith(suffix) for kind in self.types)


@dataclass(frozen=True, slots=True)
class Processor:
    """Our ext_proc filter; `position` in the filter list."""

    spot: Spot
    name: str
    position: int
    message: ext_proc_v3.ExternalProcessor

    @property
    def cluster(self) -> str | None:
        service = self.message.grpc_service
        return service.envoy_grpc.cluster_name if service and service.envoy_grpc else None


@dataclass(frozen=True, slots=True)
class Route:
    """With what its virtual host gives it. `groups`: the priority_group specifier, as YAML."""

    spot: Spot
    host: VirtualHost
    message: route_v3.Route
    """Without its `route`, which is `action`."""
    raw: Node
    action: route_v3.RouteAction | None
    retry: route_v3.RetryPolicy | None
    retry_spot: Spot
    groups: Node | None
    admits: tuple[Admit, ...] | None
    """The values of the admit header with which a request may take it; None: it needs none."""


@dataclass(frozen=True, slots=True)
class VirtualHost:
    spot: Spot
    message: route_v3.VirtualHost
    raw: Node
    plugins: Node
    """The route configuration's cluster_specifier_plugins by name, as YAML."""
    per_filter: Node
    """The route configuration's typed_per_filter_config."""


@dataclass(frozen=True, slots=True)
class Door:
    """An HTTP connection manager and the listener that it stands in."""

    spot: Spot
    listener_spot: Spot
    listener: listener_v3.Listener
    message: hcm_v3.HttpConnectionManager
    strips: tuple[mutation_v3.HeaderMutation, ...]
    """What is done to a request's headers before anything reads them."""
    filters: tuple[Filter, ...]
    logs: tuple[tuple[Spot, log_v3.OpenTelemetryAccessLogConfig], ...]
    processor: Processor | None
    hosts: tuple[VirtualHost, ...]
    routes: tuple[Route, ...]
    elsewhere: tuple[str, ...]
    """The fields by which routes come that are not seen here."""

    @property
    def admit_routes(self) -> tuple[Route, ...]:
        return tuple(route for route in self.routes if route.admits and route.action is not None)

    @property
    def first_routes(self) -> tuple[Route, ...]:
        """Per virtual host with admit routes: where a request stands before it is admitted."""
        hosts = {id(route.host): route.host for route in self.admit_routes}.values()
        return tuple(route for host in hosts if (route := self.first_route(host)) is not None)

    def first_route(self, host: VirtualHost, path: str = MODEL_PATH) -> Route | None:
        mine = (route for route in self.routes if route.host is host)
        return next((route for route in mine if _takes_everybody(route, path)), None)


@dataclass(frozen=True, slots=True)
class Cluster:
    spot: Spot
    name: str
    message: cluster_v3.Cluster
    raw: Node
    options_spot: Spot
    options: upstream_v3.HttpProtocolOptions
    filters: tuple[Filter, ...]

    @property
    def limits(self) -> cluster_v3.CircuitBreakersThresholds | None:
        """Those of the default priority."""
        breakers = self.message.circuit_breakers
        found = breakers.thresholds if breakers else []
        return next((limits for limits in found if limits.priority.name == "DEFAULT"), None)

    @property
    def common_options(self) -> core_v3.HttpProtocolOptions | None:
        mine = self.options.common_http_protocol_options
        return mine or self.message.common_http_protocol_options

    @property
    def is_http2(self) -> bool:
        explicit = self.options.explicit_http_config
        return (
            (explicit is not None and explicit.http2_protocol_options is not None)
            or self.options.auto_config is not None
            or self.message.http2_protocol_options is not None
        )

    @property
    def hosts(self) -> list[core_v3.Address]:
        assignment = self.message.load_assignment
        return [
            host.endpoint.address
            for locality in (assignment.endpoints if assignment else [])
            for host in locality.lb_endpoints
            if host.endpoint and host.endpoint.address
        ]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    policy: Policy
    raw: Node
    doors: tuple[Door, ...]
    tcp: tuple[Filter, ...]
    """The TCP proxies."""
    clusters: dict[str, Cluster]
    unread: tuple[Unread, ...]

    @property
    def gateways(self) -> Iterator[tuple[Door, Processor]]:
        return ((door, door.processor) for door in self.doors if door.processor)

    @property
    def model_doors(self) -> tuple[Door, ...]:
        """Those that a request for a model can come through."""
        return tuple(door for door in self.doors if door.processor or door.admit_routes)

    @property
    def pools(self) -> Iterator[tuple[str, Cluster]]:
        """The pools that have a cluster."""
        return ((n, self.clusters[n]) for n in self.policy.pools if n in self.clusters)

    def pools_behind(self, route: Route) -> tuple[str, ...]:
        """The pools to which it can lead, and `*` where it can lead to any cluster."""
        action = mapping(route.raw.get("route"))
        names = set(_named_clusters(action, route.host.plugins))
        found = {name for name in names if name == "*"}
        for name in names:
            found |= self._members(name) & {*self.policy.pools}
        return tuple(sorted(found))

    def pools_mirrored(self, route: Route) -> tuple[str, ...]:
        policies = [
            policy
            for owner in (mapping(route.raw.get("route")), route.host.raw)
            for policy in items(owner.get("request_mirror_policies"))
        ]
        found: set[str] = set()
        for policy in policies:
            found |= self._members(text(mapping(policy).get("cluster"))) & {*self.policy.pools}
        return tuple(sorted(found))

    def pools_of(self, proxy: Filter) -> tuple[str, ...]:
        found: set[str] = set()
        for name in _named_clusters(proxy.raw, {}):
            found |= self._members(name) & {*self.policy.pools}
        return tuple(sorted(found))

    def _members(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """The cluster, and the clusters of which it is made (aggregate, composite)."""
        found = {name}
        if name in seen or name not in self.clusters:
            return found
        made_of = dig(self.clusters[name].raw, "cluster_type", "typed_config", "clusters")
        for member in items(made_of):
            inner = member if isinstance(member, str) else text(mapping(member).get("name"))
            found |= self._members(inner, seen | {name})
        return found


def _takes_everybody(route: Route, path: str) -> bool:
    """Whether every request to this path that is not admitted yet takes it, if it comes so far."""
    match = route.message.match
    if match is None or route.admits is not None:
        return False
    conditions = (
        match.headers,
        match.query_parameters,
        match.cookies,
        match.dynamic_metadata,
        match.filter_state,
        match.runtime_fraction,
        match.grpc,
        match.tls_context,
    )
    return not any(conditions) and path_matches(match, path)


def path_matches(match: route_v3.RouteMatch, path: str) -> bool:
    if match.safe_regex is not None:
        return regex_matches(match.safe_regex.regex, path)
    if match.prefix is not None:
        return path.startswith(match.prefix)
    if match.path_separated_prefix is not None:
        return f"{path}/".startswith(f"{match.path_separated_prefix}/")
    return match.path == path


def _named_clusters(action: Node, plugins: Node) -> Iterator[str]:
    """The clusters that a route action or a TCP proxy names; `*`: a header may name any."""
    if action.get("cluster_header") is not None:
        yield "*"
    yield text(action.get("cluster"))
    for plugin in (
        action.get("inline_cluster_specifier_plugin"),
        plugins.get(text(action.get("cluster_specifier_plugin"))),
    ):
        payload = mapping(dig(plugin, "extension", "typed_config"))
        kind = text(payload.get("@type"))
        if kind and not kind.endswith(
            (".PriorityGroupClusterSpecifier", ".MatcherClusterSpecifier")
        ):
            yield "*"  # a program chooses
        yield from _clusters_in(payload)
    for one in items(dig(action, "weighted_clusters", "clusters")):
        yield text(mapping(one).get("name"))
        if mapping(one).get("cluster_header") is not None:
            yield "*"


def _clusters_in(value: object) -> Iterator[str]:
    """Every cluster that any kind of specifier plugin names."""
    for child in items(value):
        yield from _clusters_in(child)
    for key, child in named(value):
        if key in ("cluster", "cluster_name", "default_cluster"):
            yield text(child)
        yield from _clusters_in(child)
