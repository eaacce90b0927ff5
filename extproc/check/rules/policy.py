"""The policy, and whether the bootstrap has what it names."""

from collections.abc import Iterator

from extproc.check.bootstrap import Bootstrap, Policy
from extproc.check.findings import Finding, error, warning
from extproc.check.reading import text
from extproc.config.tree import dig


def policy_errors(policy: Policy) -> Iterator[Finding]:
    for problem in policy.problems:
        key, _, reason = problem.partition(": ")
        yield error(
            "policy",
            key.replace("forebay", policy.spot.path, 1),
            f"The processor refuses to start with this: {_sentence(reason or key)}",
            "Correct this key. envoy/README.md lists every key with its unit and its default.",
        )


def _sentence(words: str) -> str:
    return words if words.endswith((".", "?")) else f"{words}."


def unreadable(bootstrap: Bootstrap) -> Iterator[Finding]:
    for one in bootstrap.unread:
        if one.unknown:
            yield warning(
                "unknown-field",
                one.spot,
                f"{one.why}: misspelt, or newer than the types of this check. Whatever it says was "
                "left out here.",
                "Correct the spelling, or leave it if your Envoy takes it (envoy --mode validate).",
            )
        else:
            yield error(
                "unreadable",
                one.spot,
                f"Envoy will not take this: {one.why}. The check went on as if it were unset.",
                "Write it as Envoy's reference says: durations as 15s, booleans and numbers bare.",
            )


def pool_cluster(bootstrap: Bootstrap) -> Iterator[Finding]:
    for name in bootstrap.policy.pools:
        if name not in bootstrap.clusters:
            there = ", ".join(bootstrap.clusters) or "none"
            yield error(
                "pool-cluster",
                bootstrap.policy.spot.at(f"pools.{name}"),
                f"No static cluster is named {name!r} (there are: {there}); a pool is the replicas "
                "behind the cluster of its name.",
                f"Add a cluster {name} to static_resources.clusters, or rename the pool.",
            )


def no_processor(bootstrap: Bootstrap) -> Iterator[Finding]:
    doors = [door for door in bootstrap.model_doors if not door.processor]
    if not any(bootstrap.gateways) and not doors:
        yield error(
            "no-ext-proc",
            "static_resources.listeners",
            "No listener has an ext_proc filter: nothing is admitted, queued or counted.",
            "Let `forebay attach FILE` add it, with what belongs to it.",
        )
    for door in doors:
        yield error(
            "no-ext-proc",
            door.spot.at("http_filters"),
            "It has admit routes and no ext_proc filter that is enabled: nobody sets the admit "
            "header, so no request reaches a model.",
            "Take the filter envoy.filters.http.ext_proc from envoy/envoy.yaml.",
        )


def overload_manager(bootstrap: Bootstrap) -> Iterator[Finding]:
    if not bootstrap.raw.get("overload_manager"):
        yield warning(
            "no-overload-manager",
            "overload_manager",
            "Envoy holds every waiting request's body in memory. Without a limit the system ends "
            "it when memory runs out, and all running answers with it.",
            "Add an overload_manager with a fixed_heap monitor and stop_accepting_requests.",
        )


def exposed_admin(bootstrap: Bootstrap) -> Iterator[Finding]:
    address = text(dig(bootstrap.raw, "admin", "address", "socket_address", "address"))
    if address in ("0.0.0.0", "::"):
        yield warning(
            "admin-exposed",
            "admin.address",
            f"Envoy's admin port listens on {address}: whoever reaches it can read the config, and "
            "end Envoy by one request.",
            "Listen on 127.0.0.1, or let only the metrics scraper reach the port.",
        )


RULES = (unreadable, pool_cluster, no_processor, overload_manager, exposed_admin)
