"""Retries and fallback: attempt N goes to tier N; only what has not begun to answer is retried."""

from collections.abc import Iterator

from extproc.check.bootstrap import Bootstrap, Route
from extproc.check.findings import RENEW, Finding, error, warning
from extproc.check.reading import text
from extproc.config import Config
from extproc.config.tree import items, mapping

_DEFAULT_RETRIES = 3

# What a retry has to follow on, and the words of retry_on that contain it.
_CAUSES = {
    "an answer of 5xx": ("5xx", "gateway-error"),
    "a reset": ("reset", "5xx", "gateway-error", "reset-before-request"),
    "a refused connection": ("connect-failure", "reset", "5xx", "gateway-error"),
}


def retry_budget(bootstrap: Bootstrap) -> Iterator[Finding]:
    if not _falls_back(bootstrap.policy.config):
        return
    for name, cluster in bootstrap.pools:
        if cluster.limits and cluster.limits.retry_budget:
            yield error(
                "retry-budget",
                cluster.spot.at("circuit_breakers.thresholds.retry_budget"),
                f"A retry budget counts per cluster and so kills fallback: with {name} dead, of "
                "60 requests at once 50 got 503 instead of the next pool (measured at 20 %, "
                "minimum 10).",
                "Remove it; the length of the list of pools bounds the attempts. Set max_retries.",
            )


def max_retries(bootstrap: Bootstrap) -> Iterator[Finding]:
    config = bootstrap.policy.config
    if config is None:
        return
    for name, cluster in bootstrap.pools:
        fallers = _fallers(config, name)
        needed = sum(config.pools[p].all_slots + config.admission.most_waiting for p in fallers)
        limits = cluster.limits
        if limits and limits.retry_budget:
            continue  # replaces max_retries, and has a finding of its own
        limit = limits.max_retries if limits else None
        if (_DEFAULT_RETRIES if limit is None else limit) < needed:
            yield error(
                "max-retries",
                cluster.spot.at("circuit_breakers.thresholds.max_retries"),
                f"It is {f'{_DEFAULT_RETRIES} (the default)' if limit is None else limit}: above "
                f"it requests of {', '.join(fallers)} that fail get 503 instead of the next pool. "
                f"Slots and queues there make {needed}.",
                f"max_retries: at least {needed}",
            )


def _fallers(config: Config, name: str) -> list[str]:
    """Pools whose requests may be retries here, or begin here and be tried again."""
    fallback = config.routing.fallback
    return [p for p in config.pools if fallback.get(p) and (p == name or name in fallback[p])]


def per_try_timeouts(bootstrap: Bootstrap) -> Iterator[Finding]:
    for route in _admit_routes(bootstrap):
        if route.retry is None:
            continue
        only_stream = route.admits == ("stream",)
        for field, make in (
            ("per_try_timeout", error),
            ("per_try_idle_timeout", warning if only_stream else error),
        ):
            if getattr(route.retry, field):
                yield make(
                    field.replace("_", "-"),
                    route.retry_spot.at(field),
                    "It sends work again that a server has begun and is only slow at, so that it "
                    "is done several times."
                    + (" A started stream is cut." if field == "per_try_idle_timeout" else ""),
                    f"Remove it. {'idle_timeout of the route' if only_stream else 'The deadline'} "
                    "ends what takes too long.",
                )


def hedging(bootstrap: Bootstrap) -> Iterator[Finding]:
    for route in _admit_routes(bootstrap):
        own = route.action.hedge_policy if route.action else None
        policy = own or route.host.message.hedge_policy
        if policy and (policy.hedge_on_per_try_timeout or (policy.initial_requests or 1) > 1):
            yield error(
                "hedging",
                route.spot.at("route.hedge_policy") if own else route.host.spot.at("hedge_policy"),
                "The same prompt runs on several servers at once, while only one slot is charged.",
                "Remove it.",
            )


def retry_on(bootstrap: Bootstrap) -> Iterator[Finding]:
    for route in _fallback_routes(bootstrap):
        policy = route.retry
        words = [word.strip() for word in policy.retry_on.split(",")] if policy else []
        if lost := [c for c, contained in _CAUSES.items() if not {*words} & {*contained}]:
            yield error(
                "retry-on",
                route.retry_spot.at("retry_on"),
                f"After {', '.join(lost)} the next pool is not tried.",
                "retry_on: 5xx,reset,connect-failure,refused-stream,retriable-status-codes",
            )
        elif policy and not (
            "retriable-status-codes" in words and 429 in policy.retriable_status_codes
        ):
            yield warning(
                "retry-429",
                route.retry_spot.at("retriable_status_codes"),
                "A server or a hosted API that answers 429 is not followed by the next pool.",
                "Add retriable-status-codes to retry_on and retriable_status_codes: [429].",
            )


def refresh_cluster(bootstrap: Bootstrap) -> Iterator[Finding]:
    for route in _fallback_routes(bootstrap):
        if route.retry and not route.retry.refresh_cluster_on_retry:
            yield error(
                "refresh-cluster-on-retry",
                route.retry_spot.at("refresh_cluster_on_retry"),
                "Every attempt goes to the first pool again; the other pools are never tried.",
                "refresh_cluster_on_retry: true",
            )


def priority_groups(bootstrap: Bootstrap) -> Iterator[Finding]:
    """The specifier is read as plain YAML: envoy-data-plane 2.2.0 does not have it."""
    for door in bootstrap.model_doors:
        for route in door.admit_routes:
            place = route.spot.at("route.inline_cluster_specifier_plugin")
            if route.groups is None:
                if _falls_back(bootstrap.policy.config):
                    yield error(
                        "priority-groups",
                        place,
                        "There are no priority_groups: the processor's list of pools is not "
                        "obeyed.",
                        "Take inline_cluster_specifier_plugin of admit_stream from "
                        "envoy/envoy.yaml.",
                    )
                continue
            groups = {
                text(mapping(group).get("name")): items(mapping(group).get("clusters"))
                for group in items(route.groups.get("priority_groups"))
            }
            if lacking := [name for name in bootstrap.policy.pools if name not in groups]:
                yield error(
                    "priority-groups",
                    place.at("priority_groups"),
                    f"{', '.join(lacking)} is not among them: Envoy skips it in the processor's "
                    "list.",
                    f"{RENEW} or write " + ", ".join(_group(name) for name in lacking),
                )
            for name in bootstrap.policy.pools:
                clusters = {text(mapping(c).get("cluster_name")) for c in groups.get(name, [])}
                if name in groups and clusters != {name}:
                    yield error(
                        "priority-group-cluster",
                        place.at(f"priority_groups ({name})"),
                        f"The group {name} leads to {', '.join(sorted(clusters)) or 'no cluster'}: "
                        f"slots and cost are charged to the pool {name}, which another serves.",
                        _group(name),
                    )
            if route.groups.get("override_metadata_namespace") != "pg":
                yield error(
                    "priority-group-override",
                    place.at("override_metadata_namespace"),
                    "The order that the processor sends for each request is not read; all requests "
                    "go through the groups in the order of this file.",
                    "override_metadata_namespace: pg",
                )


def _group(name: str) -> str:
    return f"{{name: {name}, clusters: [{{cluster_name: {name}, weight: 1}}]}}"


def _falls_back(config: Config | None) -> bool:
    return config is None or any(config.routing.fallback.values())


def _admit_routes(bootstrap: Bootstrap) -> Iterator[Route]:
    for door in bootstrap.model_doors:
        yield from door.admit_routes


def _fallback_routes(bootstrap: Bootstrap) -> Iterator[Route]:
    if _falls_back(bootstrap.policy.config):
        for route in _admit_routes(bootstrap):
            if not _policy_is_elsewhere(route):
                yield route


def _policy_is_elsewhere(route: Route) -> bool:
    field = "retry_policy_typed_config"
    return field in mapping(route.raw.get("route")) or field in route.host.raw


RULES = (
    retry_budget,
    max_retries,
    per_try_timeouts,
    hedging,
    retry_on,
    refresh_cluster,
    priority_groups,
)
