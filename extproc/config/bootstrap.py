"""What the Envoy bootstrap around the policy says, as far as the processor depends on it.

Each check yields lines that name a path. `forebay check` looks much further.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from extproc.config.policy import Config, ConfigError
from extproc.config.tree import dig, items, mapping, walk


def _clusters(bootstrap: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    clusters = items(dig(bootstrap, "static_resources", "clusters"))
    return {str(mapping(c).get("name")): mapping(c) for c in clusters}


def _addresses(cluster: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for block in walk(cluster.get("load_assignment")):
        if "endpoint" in block:
            yield mapping(dig(block, "endpoint", "address"))


def with_cluster_endpoints(
    policy: Mapping[str, Any], bootstrap: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Pools that name no endpoints take those of the cluster with their name."""
    clusters = _clusters(bootstrap)
    pools: dict[str, Any] = {}
    for name, pool in mapping(policy.get("pools")).items():
        pools[name] = pool
        if not isinstance(pool, Mapping) or "endpoints" in pool or name not in clusters:
            continue
        sockets = [mapping(a.get("socket_address")) for a in _addresses(clusters[name])]
        scheme = "https" if "transport_socket" in clusters[name] else "http"
        urls = [f"{scheme}://{s.get('address')}:{s.get('port_value')}" for s in sockets if s]
        pools[name] = {**mapping(cast(object, pool)), "endpoints": urls}
    return {**policy, "pools": pools or policy.get("pools")}


def clusters_missing(config: Config, bootstrap: Mapping[str, Any]) -> list[str]:
    clusters = _clusters(bootstrap)
    return [
        f"forebay.pools.{name}: the bootstrap has no static cluster of this name; "
        f"there are {', '.join(clusters) or 'none'}"
        for name in config.pools
        if name not in clusters
    ]


def _ext_proc_filter(bootstrap: Mapping[str, Any]) -> Mapping[str, Any]:
    for block in walk(bootstrap.get("static_resources")):
        if str(block.get("@type", "")).endswith(".ext_proc.v3.ExternalProcessor"):
            return block
    return {}


def processor_address(bootstrap: Mapping[str, Any], problems: list[str]) -> str | None:
    name = dig(_ext_proc_filter(bootstrap), "grpc_service", "envoy_grpc", "cluster_name")
    if name is None:
        problems.append("static_resources: no ext_proc filter with an envoy_grpc cluster found")
        return None
    for address in _addresses(_clusters(bootstrap).get(str(name), {})):
        if path := dig(address, "pipe", "path"):
            return f"unix:{path}"
        if socket := mapping(address.get("socket_address")):
            return f"{socket.get('address')}:{socket.get('port_value')}"
    problems.append(
        f"static_resources.clusters: {name!r}, the processor's cluster, has no endpoint"
    )
    return None


def hold_times_out_of_order(config: Config, bootstrap: Mapping[str, Any]) -> Iterator[str]:
    """While a request queues, Envoy waits for our message and sees an idle stream: both of its
    limits must be longer than ours, or it ends requests that still had a chance."""
    max_wait_s, held_s = config.admission.max_wait, config.admission.held_s
    processor = _ext_proc_filter(bootstrap)
    message_s = _envoy_duration_s(processor.get("message_timeout"), 0.2)
    longest_s, of = message_s, "message_timeout"
    if not max_wait_s < message_s:
        yield (
            f"forebay.admission.max_wait: {max_wait_s:g}s must be below the ext_proc filter's "
            f"message_timeout ({message_s:g}s)"
        )
    if held_s is not None:
        most_s = _envoy_duration_s(processor.get("max_message_timeout"), 0.0)
        if most_s < held_s:
            yield (
                f"forebay.admission.batch.max_wait: {config.admission.batch.max_wait:g}s needs a "
                f"max_message_timeout of {held_s:g}s or more on the ext_proc filter; it is "
                f"{most_s:g}s"
            )
        elif most_s > longest_s:
            longest_s, of = most_s, "max_message_timeout"
    for block in walk(bootstrap.get("static_resources")):
        is_manager = str(block.get("@type", "")).endswith(".HttpConnectionManager")
        if is_manager and _ext_proc_filter({"static_resources": block.get("http_filters")}):
            idle_s = _envoy_duration_s(block.get("stream_idle_timeout"), 300.0)
            if idle_s and not longest_s < idle_s:
                yield (
                    f"{of}: {longest_s:g}s (ext_proc filter) must be below "
                    f"stream_idle_timeout ({idle_s:g}s)"
                )


def headers_withheld(config: Config, bootstrap: Mapping[str, Any]) -> Iterator[str]:
    """A tenant header that Envoy does not show us would make everybody the default tenant; without
    the user's nothing is shared by user."""
    allowed = dig(_ext_proc_filter(bootstrap), "forward_rules", "allowed_headers", "patterns")
    if allowed is None:
        return
    headers = {"tenant_header": config.tenant_header}
    if config.reads_users:
        headers["user_header"] = config.user_header
    for key, name in headers.items():
        if not _lets_through(items(allowed), name):
            yield (
                f"forebay.{key}: the ext_proc filter's forward_rules do not let {name} through; "
                f"add {{exact: {name}}}"
            )


def _lets_through(allowed: list[object], name: str) -> bool:
    for pattern in map(mapping, allowed):
        if pattern.get("exact") == name or name.startswith(str(pattern.get("prefix", "\0"))):
            return True
        if not pattern.keys() & {"exact", "prefix"}:
            return True  # another kind of match: not judged here
    return False


def pools_no_route_knows(config: Config, bootstrap: Mapping[str, Any]) -> Iterator[str]:
    """Envoy takes from our list of pools only what its route's priority groups name."""
    for block in walk(bootstrap.get("static_resources")):
        if str(block.get("@type", "")).endswith(".PriorityGroupClusterSpecifier"):
            names = [mapping(g).get("name") for g in items(block.get("priority_groups"))]
            for pool in config.pools:
                if pool not in names:
                    yield f"forebay.pools.{pool}: an admit route's priority_groups lacks this pool"
            return


def _envoy_duration_s(value: object, default_s: float) -> float:
    """Envoy writes durations as '1.5s'."""
    if value is None:
        return default_s
    try:
        return float(str(value).removesuffix("s"))
    except ValueError as error:
        raise ConfigError(f"{value!r} is no duration; Envoy writes them as 1.5s") from error
