"""The pools' clusters: their ceilings, their endpoints, and what is done to each attempt."""

from collections.abc import Iterator
from ipaddress import ip_address

from extproc.check.bootstrap import Bootstrap, Cluster, Filter
from extproc.check.findings import RENEW, Finding, error
from extproc.check.reading import Reader, text, texts

_TIER_HEADER = "x-forebay-tier"
_DEFAULT_LIMIT = 1024


def limits(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    if config is None:
        return
    for name, cluster in bootstrap.pools:
        slots = config.pools[name].all_slots
        fields = ["max_requests", "max_pending_requests"]
        if not cluster.is_http2:
            fields.append("max_connections")  # HTTP/1.1 needs one for each request
        for field in fields:
            limit = getattr(cluster.limits, field, None)
            if (_DEFAULT_LIMIT if limit is None else limit) < slots:
                shown = f"{_DEFAULT_LIMIT} (the default)" if limit is None else limit
                yield error(
                    "pool-limits",
                    cluster.spot.at(f"circuit_breakers.thresholds.{field}"),
                    f"It is {shown} and the pool has {slots} slots: requests that were admitted "
                    "get 503 or wait unseen.",
                    f"{field}: at least {slots}",
                )


def endpoints(bootstrap: Bootstrap) -> Iterator[Finding]:
    for name, cluster in bootstrap.pools:
        kind = cluster.message.type.name if cluster.message.type is not None else "STATIC"
        if cluster.message.cluster_type is not None:
            continue
        if kind == "ORIGINAL_DST":
            yield error(
                "pool-original-dst",
                cluster.spot.at("type"),
                "It has no list of hosts: a request names the address that Envoy calls, any "
                "address.",
                "List the servers: type STATIC or STRICT_DNS with load_assignment.",
            )
        elif kind != "EDS" and not cluster.hosts:
            yield error(
                "pool-empty",
                cluster.spot.at("load_assignment.endpoints"),
                f"{name} has no endpoint. A first pool without hosts is answered 503 at once; the "
                "next pool is not tried.",
                "Add lb_endpoints, or remove the pool from the policy.",
            )


def hostnames(bootstrap: Bootstrap) -> Iterator[Finding]:
    for cluster in bootstrap.clusters.values():
        kind = cluster.message.type
        if kind is None or kind.name != "STATIC":
            continue
        for address in cluster.hosts:
            socket = address.socket_address
            if socket and not socket.resolver_name and not _is_ip(socket.address):
                yield error(
                    "static-hostname",
                    cluster.spot.at("type"),
                    f"Its endpoint {socket.address!r} is a name, and STATIC takes IP addresses "
                    "only: Envoy does not start.",
                    "type: STRICT_DNS",
                )


def _is_ip(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


def tier_header(bootstrap: Bootstrap) -> Iterator[Finding]:
    for name, cluster in bootstrap.pools:
        values = [value for _, value in _tier_values(cluster)]
        if values == [name]:
            continue
        what = f"is set to {', '.join(values)}" if values else "is not set"
        yield error(
            "tier-header",
            cluster.options_spot.at("http_filters"),
            f"{_TIER_HEADER} {what} for this cluster: its servers are sent the model name of "
            "another pool, or the client's, and answer 404.",
            "A header_mutation filter with request_mutations: [{append: {header: {key: "
            f"{_TIER_HEADER}, value: {name}}}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}}}}]",
        )


def tier_lua(bootstrap: Bootstrap) -> Iterator[Finding]:
    for _, cluster in bootstrap.pools:
        tier = next((position for position, _ in _tier_values(cluster)), -1)
        rewrites = [n for n, one in enumerate(cluster.filters) if _rewrites(one)]
        if rewrites and rewrites[0] > tier:
            if not _rewrites(cluster.filters[rewrites[0]], "here.adds"):
                yield error(
                    "tier-lua-old",
                    cluster.filters[rewrites[0]].spot,
                    "This Lua filter is of an earlier version: a client's own priority, cache_salt "
                    "and request_id reach the servers, and what the policy has to say there does "
                    "not.",
                    f"{RENEW} or take the Lua filter of the cluster small from this version's "
                    "envoy/envoy.yaml.",
                )
            continue
        what = "stands before the tier header is set" if rewrites else "is missing"
        yield error(
            "tier-lua",
            cluster.options_spot.at("http_filters"),
            f"The Lua filter that writes this tier's model name into each attempt {what}: the "
            "servers are asked for a model by the client's name for it, and answer 404.",
            f"{RENEW} or take the Lua filter of the cluster small from envoy/envoy.yaml, after the "
            "tier header.",
        )


def _rewrites(one: Filter, word: str = _TIER_HEADER) -> bool:
    """A Lua filter that reads the tier header; one whose source is in a file is trusted to."""
    if not one.is_a(".lua.v3.Lua"):
        return False
    found = list(texts(one.raw))
    return one.elsewhere or "filename" in found or any(word in value for value in found)


def _tier_values(cluster: Cluster) -> Iterator[tuple[int, str]]:
    """Each value that the cluster's filters give the tier header, with the filter's position."""
    from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation

    for position, one in enumerate(cluster.filters):
        if one.is_a(".header_mutation.v3.HeaderMutation"):
            message = Reader().message(HeaderMutation, one.raw, one.spot)
            for step in message.mutations.request_mutations if message.mutations else []:
                header = step.append.header if step.append else None
                if header and header.key.lower() == _TIER_HEADER:
                    yield position, text(header.value)


RULES = (limits, endpoints, hostnames, tier_header, tier_lua)
