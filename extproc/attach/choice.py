"""Where to attach: the listener and its connection managers, and the clusters that are pools."""

from collections.abc import Callable, Sequence

from extproc.attach.bootstrap import Manager, cluster_path, managers
from extproc.attach.draft import Draft
from extproc.attach.errors import AttachError
from extproc.attach.tree import Node


def choose(
    draft: Draft, pools: Sequence[str], listener: str | None, note: Callable[[str], None]
) -> tuple[list[Manager], list[str]]:
    """`pools` and `listener`: what the user asked for, or nothing. The pools that the policy has
    already come first; without any, those to which a request for a completion can come now."""
    everywhere = list(managers(draft))
    if not everywhere:
        raise AttachError(
            "static_resources.listeners: none has an HttpConnectionManager. If yours come by LDS, "
            "attach Forebay to the file that they come from."
        )
    policy = draft.find("node", "metadata", "forebay", "pools")
    known = [key.text for key, _ in policy.pairs] if policy is not None else []
    wanted = list(dict.fromkeys([*known, *pools]))
    for name in wanted:
        cluster_path(draft, name)

    chosen = everywhere
    if listener is not None:
        chosen = [manager for manager in everywhere if manager.listener_name == listener]
        if not chosen:
            raise AttachError(
                f"no listener with an HttpConnectionManager is named {listener!r}; there are: "
                f"{_names(everywhere)}"
            )
    elif attached := [manager for manager in everywhere if manager.is_attached]:
        chosen = attached
    found, candidates = wanted, [one for one in chosen if one.leads_to(wanted)]
    if not wanted:
        for catch_all in (False, True):
            reached = [(one, one.reached(catch_all=catch_all)) for one in chosen]
            candidates = [one for one, names in reached if names]
            found = list(dict.fromkeys(name for _, names in reached for name in names))
            if found:
                break
    if not candidates:
        raise AttachError(_why_none(draft, chosen, wanted))
    listeners = {manager.listener for manager in candidates}
    if len(listeners) > 1 and not all(manager.is_attached for manager in candidates):
        raise AttachError(
            f"several listeners lead there: {_names(candidates)}. Choose with --listener NAME; "
            "attach to one after the other if Forebay is to take the requests of several."
        )
    for name in found:  # by the routes, of which nothing is certain
        cluster_path(draft, name)
    _refuse_shared(draft, candidates)
    if not wanted:
        _tell_of_default(draft, found, note)
    for manager in everywhere:
        if manager not in candidates and manager.leads_to(found):
            note(
                f"{draft.where(*manager.listener)}: the listener {manager.listener_name} also "
                "leads to a pool, past admission: `forebay check` calls that an error."
            )
    return candidates, found


def _names(found: Sequence[Manager]) -> str:
    return ", ".join(dict.fromkeys(manager.listener_name for manager in found))


def _why_none(draft: Draft, chosen: Sequence[Manager], wanted: Sequence[str]) -> str:
    for manager in chosen:
        for key in ("rds", "scoped_routes"):
            if manager.node.get(key) is not None:
                return (
                    f"{draft.where(*manager.path, key)}: the routes are not in this file. Write "
                    "them inline (route_config), or attach Forebay to the file that they come from "
                    "and check it with `forebay check`."
                )
    what = " or ".join(wanted) or "a cluster for /v1/chat/completions"
    clusters = draft.tree.root.seq("static_resources", "clusters")
    there = ", ".join(name for cluster in clusters if (name := cluster.word("name")))
    return (
        f"{draft.where(*chosen[0].path)}: no route leads to {what}. Name the clusters of your "
        "model servers with --pool, at least one of which a route leads to; there are: "
        f"{there or 'none'}."
    )


def _refuse_shared(draft: Draft, candidates: Sequence[Manager]) -> None:
    """What we extend for one listener must not change another that shares it by an alias."""
    inside = [draft.get(*manager.listener) for manager in candidates]
    extended = set[Node]()
    for manager in candidates:
        extended |= {draft.get(*manager.path[:n]) for n in range(3, len(manager.path) + 1)}
        config = manager.node.get("route_config")
        for node in (config, config and config.get("virtual_hosts")):
            extended |= {node} if node else set()
        for host in manager.node.seq("route_config", "virtual_hosts"):
            extended |= {host, *(child.real for _, child in host.pairs)}
        for key in ("http_filters", "access_log", "early_header_mutation_extensions"):
            extended |= {node} if (node := manager.node.get(key)) else set()
    for alias in draft.tree.aliases:
        here = any(listener.mark <= alias.mark < listener.end for listener in inside)
        if alias.real in extended and not here:
            raise AttachError(
                f"{draft.place(alias)}: *{alias.real.anchor} shares with another listener what "
                f"has to change for {candidates[0].listener_name}. Write a copy there instead of "
                "the alias, and run this again."
            )


def _tell_of_default(draft: Draft, found: Sequence[str], note: Callable[[str], None]) -> None:
    note(
        f"Pools: {', '.join(found)}, the clusters to which requests for a completion come now. "
        "Others: --pool NAME, once for each, the one for easy requests first."
    )
    used = [node.text for node in draft.tree.root.scalars()]
    for cluster in draft.tree.root.seq("static_resources", "clusters"):
        name = cluster.word("name")
        named = 1 + (cluster.word("load_assignment", "cluster_name") == name)
        if name not in found and used.count(name) <= named:
            flags = " ".join(f"--pool {pool}" for pool in [*found, name])
            note(f"Nothing leads to the cluster {name}. If it serves a model too: {flags}")
