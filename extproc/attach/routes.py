"""The routes: those that led to a pool give way to the admit routes; all others stay as they are,
and nothing of Forebay acts on them."""

from collections.abc import Sequence

from extproc.attach.bootstrap import EMBEDDINGS_PATH, OPENAI_PATHS, Manager, Route, is_a, kinds
from extproc.attach.draft import Draft, Path
from extproc.attach.errors import AttachError
from extproc.attach.reference import Reference
from extproc.attach.source import Source, item_of, scalar
from extproc.attach.tree import Node
from extproc.attach.work import Work

# What the admit routes say themselves, or the processor decides, or the tier says.
_SUPERSEDED = {
    *("cluster", "weighted_clusters", "timeout", "idle_timeout", "max_stream_duration"),
    *("retry_policy", "cluster_not_found_response_code", "host_rewrite_literal"),
}
_CANNOT = {
    "prefix_rewrite": "the admit routes match whole paths: write it as regex_rewrite",
    "rate_limits": "nothing reads them before a request is admitted: write them into the config of "
    "the rate limit filter itself",
    "upgrade_configs": "what upgrades cannot be admitted: give it a route to another cluster",
}
_UNCLEAR = (
    *(("route", "cluster_header"), ("route", "cluster_specifier_plugin")),
    *(("route", "inline_cluster_specifier_plugin"), ("matcher",)),
)
_OURS_OFF = "without_forebay"
_OFF_PLAIN = {
    "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
    "disabled": "true",
}
_OFF = '{"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}'


def routes(work: Work, manager: Manager) -> None:
    names = [node.word("name") for node in work.reference.routes]
    others = 0
    for host, _ in enumerate(manager.node.seq("route_config", "virtual_hosts")):
        path: Path = (*manager.hosts, host)
        here = manager.routes(host)
        given = [route for route in here if is_given(work, route)]
        if given or any(route.admits or route.node.word("name") in names for route in here):
            _check(work, path, given)
            _virtual_host(work, manager, host)
            for route in manager.routes(host):
                if route.node.word("name") not in names and not route.admits:
                    others += _leave_alone(work, manager, route.path)
        else:
            others += _leave_alone(work, manager, path)
    if others and work.added_settings:
        work.note(
            "Your other routes on this listener go on without Forebay's filters. These hold for "
            f"the whole listener, and so for them too: {', '.join(work.added_settings)}."
        )


def only_embeds(managers: Sequence[Manager], pool: str) -> bool:
    """Whether the routes that lead to this cluster take embeddings and nothing else of ours."""
    mine = [r for one in managers for r in one.routes() if pool in r.destinations and not r.admits]
    return bool(mine) and all(route.only_embeds for route in mine)


def other_embeddings(
    managers: Sequence[Manager], pools: Sequence[str], reference: Reference
) -> list[Route]:
    """The user's routes for embeddings that stay as they are: they lead to no pool."""
    names = {node.word("name") for node in reference.routes}
    return [
        route
        for manager in managers
        for route in manager.routes()
        if route.only_embeds
        and not route.admits
        and route.node.word("name") not in names
        and not any(name in pools for name in route.destinations)
    ]


def is_given(work: Work, route: Route) -> bool:
    """A route of the user's that leads to a pool."""
    return not route.admits and any(name in work.pools for name in route.destinations)


# --- what cannot be done -----------------------------------------------------------------------


def _check(work: Work, host: Path, given: Sequence[Route]) -> None:
    draft = work.draft
    if given and draft.find(*host, "rate_limits") is not None:
        raise AttachError(f"{draft.where(*host, 'rate_limits')}: {_CANNOT['rate_limits']}.")
    for route in given:
        place = draft.where(*route.path)
        if not any(route.takes(path) for path in (*OPENAI_PATHS, EMBEDDINGS_PATH)):
            pool = next(name for name in route.destinations if name in work.pools)
            raise AttachError(
                f"{place}: it leads {route} to the pool {pool}, past admission: Forebay serves "
                f"{', '.join(OPENAI_PATHS)}, {EMBEDDINGS_PATH} and /v1/models. Give this route a "
                "cluster of its own (another name, the same endpoints) or remove it, and run this "
                "again."
            )
        if other := [name for name in route.destinations if name not in work.pools]:
            raise AttachError(
                f"{place}: it leads to {', '.join(other)} too, which is none of the pools. Make it "
                "one (--pool), or take it out of this route, and run this again."
            )
        for key, _ in route.action.pairs:
            if key.text in _CANNOT:
                raise AttachError(f"{place}: {key.text}: {_CANNOT[key.text]}; then run this again.")
        for cluster in route.action.seq("weighted_clusters", "clusters"):
            more = {key.text for key, _ in cluster.pairs} - {"name", "weight"}
            if more - {"host_rewrite_literal"}:
                raise AttachError(
                    f"{place}: {', '.join(sorted(more))} of the weighted cluster "
                    f"{cluster.word('name')} would be lost. Write it into that cluster's own "
                    "http_filters (header_mutation, credential_injector), and run this again."
                )


def _switched_off(work: Work, manager: Manager, given: Sequence[Route]) -> list[Route]:
    """Those on which an earlier run switched our filters off, and which say no more of filters."""
    ours, off = work.our_filters(manager), list[Route]()
    for route in given:
        config = route.node.get("typed_per_filter_config")
        names = (
            [key.text for key, value in config.pairs if value.plain() == _OFF_PLAIN]
            if config
            else []
        )
        if config and ours and set(ours) <= set(names):
            if len(names) < len(config.pairs):
                raise AttachError(
                    f"{work.draft.where(*route.path)}: its typed_per_filter_config switches "
                    f"Forebay off. Take {', '.join(ours)} out, and run this again."
                )
            off.append(route)
    return off


def _agreed(
    work: Work,
    given: Sequence[Route],
    at: tuple[str, ...],
    drop: set[str],
    off: Sequence[Route] = (),
) -> list[str]:
    """The keys of all the routes that are to be kept; they have to say the same. `off`: what these
    say of filters goes."""
    said = list[dict[str, object]]()
    for route in given:
        node = route.node.get(*at)
        plain: dict[str, object] = node.plain() if node is not None else {}
        gone = {*drop, "typed_per_filter_config"} if route in off else drop
        said.append({key: value for key, value in plain.items() if key not in gone})
    for other, route in zip(said[1:], given[1:], strict=True):
        if other != said[0]:
            keys = {key for key in {*other, *said[0]} if other.get(key) != said[0].get(key)}
            raise AttachError(
                f"{work.draft.where(*given[0].path)} and {work.draft.where(*route.path)}: both "
                "give way to the same admit routes, which can say only one of what they say of "
                f"{', '.join(sorted(keys))}. Let them say the same, and run this again."
            )
    return list(said[0]) if said else []


# --- what gives way ----------------------------------------------------------------------------


def _virtual_host(work: Work, manager: Manager, host: int) -> None:
    draft, reference = work.draft, work.reference
    path: Path = (*manager.hosts, host)
    here: Path = (*path, "routes")
    work.complete(path, reference.virtual_host, without=("name", "domains", "routes"))
    work.tell_if_lower(path, reference.virtual_host, "request_body_buffer_limit")

    given = [route for route in manager.routes(host) if is_given(work, route)]
    kept = _agreed(work, given, (), {"name", "match", "route"}, _switched_off(work, manager, given))
    kept_actions = _agreed(work, given, ("route",), _SUPERSEDED)
    for route in given:
        _tell_of(work, route)
        _remember_host_names(work, route)

    *front, nothing = reference.routes
    first = int(given[0].path[-1]) if given else 0
    before = _opened(work, given[0], kept, kept_actions) if given else None
    work.complete_list(here, front, _same, first, below_comments=True)
    if before is not None:
        for route in manager.routes(host):
            if route.admits:
                _keep(work, before, given[0].path, kept, route.path)
                action = (*given[0].path, "route")
                _keep(work, before, action, kept_actions, (*route.path, "route"))
            elif route.node.word("name") in {node.word("name") for node in front}:
                filters = [key for key in kept if key == "typed_per_filter_config"]
                _keep(work, before, given[0].path, filters, route.path)
    for route in manager.routes(host):
        if route.admits:
            _tiers(work, route)
    draft.moving.add(_OURS_OFF)
    for route in reversed(manager.routes(host)):
        if is_given(work, route):
            draft.remove_item(here, int(route.path[-1]))
    if not any(route.catches_all and route.unconditional for route in manager.routes(host)):
        work.complete_list(here, [nothing], _same, len(manager.routes(host)))


def _tiers(work: Work, route: Route) -> None:
    """A tier for each pool, also for one that was added later."""
    plugin = ("inline_cluster_specifier_plugin", "extension", "typed_config", "priority_groups")
    path: Path = (*route.path, "route", *plugin)
    for name in work.pools:
        groups = work.draft.find(*path)
        if groups is not None and name not in [group.word("name") for group in groups.seq()]:
            piece = item_of(work.reference.priority_group(name))
            work.draft.add_item(path, piece, len(groups.items))


def _same(mine: Node, theirs: Node) -> bool:
    """By name, and one that has lost its admit header is not the same any longer."""
    alike = Route(mine, ()).admits == Route(theirs, ()).admits
    return mine.word("name") == theirs.word("name") and alike


def _opened(work: Work, route: Route, keys: Sequence[str], action_keys: Sequence[str]) -> Source:
    """The text as it is, with what will be cut out of a route in lines of its own."""
    scratch = Draft(work.draft.text, lambda _: None)
    scratch.open(route.path, "map")
    if action_keys:
        scratch.open((*route.path, "route"), "map")
    for key in keys:
        kind = scratch.get(*route.path, key).kind
        if any(ours.pair(key) for ours in work.reference.routes) and kind in ("map", "seq"):
            scratch.open((*route.path, key), "map" if kind == "map" else "seq")
    return Source(scratch.text)


def _keep(work: Work, before: Source, old: Path, keys: Sequence[str], path: Path) -> None:
    """Say on one of our routes what a route said that gave way to it."""
    draft = work.draft
    for key in keys:
        said, value = before.root.get(*old), before.root.get(*old, key)
        assert said
        assert value
        here: Path = (*path, key)
        if draft.find(*here) is None:
            draft.add_pair(path, before.pair(said, key))
        elif value.kind == "seq":
            for item in value.items:
                if item.plain() not in draft.get(*here).plain():
                    draft.add_item(here, before.item(item), len(draft.get(*here).items))
        elif value.kind == "map":
            for name, _ in value.pairs:
                if draft.get(*here).pair(name.text) is None:
                    draft.add_pair(here, before.pair(value, name.text))


def _tell_of(work: Work, route: Route) -> None:
    gone = [key.text for key, _ in route.action.pairs if key.text in _SUPERSEDED]
    gone = [key for key in gone if not key.endswith(("cluster", "clusters", "literal"))]
    more = f" What it says of {', '.join(gone)}, they say themselves." if gone else ""
    if not route.node.get("match", "path"):
        more += " No other path leads there any longer."
    paths = [EMBEDDINGS_PATH] if route.only_embeds else OPENAI_PATHS
    work.note(
        f"{work.draft.where(*route.path)}: {route} led to {', '.join(route.destinations)}. In its "
        f"place are the admit routes, for {', '.join(paths)}.{more}"
    )


def _remember_host_names(work: Work, route: Route) -> None:
    said = [(name, route.action.word("host_rewrite_literal")) for name in route.destinations]
    for cluster in route.action.seq("weighted_clusters", "clusters"):
        said.append((cluster.word("name"), cluster.word("host_rewrite_literal")))
    for name, host in said:
        if host and work.hosts.setdefault(name, host) != host:
            raise AttachError(
                f"{work.draft.where(*route.path)}: two host names for the cluster {name}, {host} "
                f"and {work.hosts[name]}; let its routes say one, and run this again."
            )


# --- what stays --------------------------------------------------------------------------------


def _leave_alone(work: Work, manager: Manager, path: Path) -> bool:
    """Switch our filters off for a route or a virtual host that is none of ours, unless it says
    something about the processor itself; whether it had to be said."""
    draft = work.draft
    for unclear in _UNCLEAR:
        if draft.find(*path, *unclear) is not None:
            work.note(
                f"{draft.where(*path)}: where {unclear[-1]} leads cannot be seen. See that it is "
                "to no pool: such requests would pass by admission."
            )
    names = work.our_filters(manager)
    processor = next(
        f.word("name")
        for f in manager.node.seq("http_filters")
        if is_a(kinds(f), "ExternalProcessor")
    )
    key = "typed_per_filter_config"
    config = draft.find(*path, key)
    if config is not None and config.pair(processor):
        return False
    lines = [f"  {scalar(names[0])}: &without {_OFF}"]
    lines += [f"  {scalar(name)}: *without" for name in names[1:]]
    remark = " # as before: nothing of Forebay acts here"
    piece = Source("\n".join([f"{key}: &{_OURS_OFF}{remark}", *lines, ""]))
    if config is None:
        draft.add_pair(path, piece.pair(piece.root, key))
        return True
    wanted = piece.root.get(key)
    assert wanted
    for name in names:
        if draft.get(*path, key).pair(name) is None:
            draft.add_pair((*path, key), piece.pair(wanted, name))
    return True
