"""Prompts that begin alike go to one replica only if the policy, the routes and the clusters all
say so: each part alone does nothing, or spreads requests by chance."""

from collections.abc import Iterator

from extproc.check.bootstrap import Bootstrap, Cluster, Route
from extproc.check.findings import RENEW, Finding, warning
from extproc.check.reading import text
from extproc.config.tree import dig, items, mapping
from extproc.wire import PREFIX_HEADER

_RULE = "prefix-affinity"
_POLICY = "routing.prefix_affinity"
_RINGS = ("RING_HASH", "MAGLEV")


def no_ring(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    if config is None or not config.routing.prefix_affinity:
        return
    if not any(_is_ring(cluster) for _, cluster in bootstrap.pools):
        yield warning(
            _RULE,
            bootstrap.policy.spot.at(_POLICY),
            "Each request gets a hash of its prompt's beginning, and no pool's cluster chooses by "
            "one.",
            "lb_policy: RING_HASH for the clusters with several replicas, or leave it out.",
        )
        return
    for door in bootstrap.model_doors:
        for route in door.admit_routes:
            if PREFIX_HEADER not in _hashed(route):
                yield warning(
                    _RULE,
                    route.spot.at("route.hash_policy"),
                    f"It makes no hash of {PREFIX_HEADER}: a ring without a hash chooses by "
                    "chance.",
                    f"{RENEW} or write hash_policy: [{{header: {{header_name: {PREFIX_HEADER}}}}}]",
                )
            for spot, names in (
                (route.spot, route.message.request_headers_to_remove),
                (route.host.spot, route.host.message.request_headers_to_remove),
            ):
                if PREFIX_HEADER in map(str.lower, names):
                    yield warning(
                        _RULE,
                        spot.at("request_headers_to_remove"),
                        f"{PREFIX_HEADER} is removed before the hash is made of it.",
                        "Leave it there: the tier's Lua filter takes it from requests to servers "
                        "that are no vLLM.",
                    )


def ring_without_hash(bootstrap: Bootstrap) -> Iterator[Finding]:
    """The other way round: the cluster asks for a hash that nobody makes."""
    config = bootstrap.policy.config
    if config is None or config.routing.prefix_affinity:
        return
    hashed = [_hashed(r) for door in bootstrap.model_doors for r in door.admit_routes]
    if all(names - {PREFIX_HEADER} for names in hashed):
        return  # by something else
    for name, cluster in bootstrap.pools:
        if _is_ring(cluster):
            yield warning(
                _RULE,
                cluster.spot.at("lb_policy"),
                f"Nobody says a hash for it: the replicas of {name} are chosen by chance, worse "
                "than by LEAST_REQUEST.",
                f"{_POLICY}: true in the policy, or lb_policy: LEAST_REQUEST.",
            )


def unbounded(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    if config is None or not config.routing.prefix_affinity:
        return
    for name, cluster in bootstrap.pools:
        bound = dig(cluster.raw, "common_lb_config", "consistent_hashing_lb_config")
        by_field = text(cluster.raw.get("lb_policy")) in _RINGS
        if by_field and not mapping(bound).get("hash_balance_factor"):
            yield warning(
                _RULE,
                cluster.spot.at("common_lb_config"),
                f"A beginning that many prompts share brings all of them to one replica of {name}, "
                "however busy.",
                "common_lb_config: {consistent_hashing_lb_config: {hash_balance_factor: 150}}",
            )


def _is_ring(cluster: Cluster) -> bool:
    if text(cluster.raw.get("lb_policy")) in _RINGS:
        return True
    policies = items(dig(cluster.raw, "load_balancing_policy", "policies"))
    kinds = [text(dig(one, "typed_extension_config", "typed_config", "@type")) for one in policies]
    return any(kind.endswith((".RingHash", ".Maglev")) for kind in kinds)


def _hashed(route: Route) -> set[str]:
    """The headers by whose value it hashes, and `*` for anything else that it hashes by."""
    policies = route.action.hash_policy if route.action else []
    return {policy.header.header_name.lower() if policy.header else "*" for policy in policies}


RULES = (no_ring, ring_without_hash, unbounded)
