"""What is added to a bootstrap, in the order of the reference config. Each step adds only what is
not there, and changes no value that somebody set; where such a value matters, it says so."""

from extproc.attach.bootstrap import Manager, cluster_path, is_a, kinds
from extproc.attach.draft import Path
from extproc.attach.errors import AttachError
from extproc.attach.source import Anchors, item_of, pair_of
from extproc.attach.tree import Node
from extproc.attach.work import Work

_AUTH = ("ApiKeyAuth", "JwtAuthentication", "ExtAuthz", "BasicAuth", "OAuth2")
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_OLD_HTTP_FIELDS = (
    *("http2_protocol_options", "http_protocol_options", "common_http_protocol_options"),
    *("upstream_http_protocol_options", "protocol_selection"),
)


# --- the policy --------------------------------------------------------------------------------


def policy(work: Work) -> None:
    draft, reference = work.draft, work.reference
    node = reference.root.get("node")
    assert node
    if draft.find("node") is None:
        draft.add_at_top(reference.pair(reference.root, "node"))
    elif draft.find("node", "metadata", "forebay") is None:
        work.complete(("node",), node, ("id", "cluster"))
        if draft.find("node", "metadata") is None:
            work.complete(("node",), node, ("metadata",))
        else:
            metadata = node.get("metadata")
            assert metadata
            work.complete(("node", "metadata"), metadata)
    else:
        work.complete(("node",), node, ("id", "cluster"))
        _more_pools(work)
        return
    _tell_of_policy(work)


def _tell_of_policy(work: Work) -> None:
    place = "node.metadata.forebay"
    texts = [name for name in work.pools if name not in work.embedders] or work.pools
    first, second = texts[0], texts[min(1, len(texts) - 1)]
    models = ", ".join(f"{name}: {model}" for name, model in work.models.items())
    work.note(
        f"{place}.pools: set `slots` (32 is a guess), and `model` to what the servers themselves "
        f"call it ({models}; --model CLUSTER=NAME)."
    )
    if first == second:
        work.note(
            f"{place}.routing: with one pool, `auto` is {first}, and nothing takes its place."
        )
    else:
        work.note(
            f"{place}.routing: of `auto`, easy requests go to {first}, hard ones to {second}."
        )
    for name in work.pools:
        cluster = work.draft.get(*cluster_path(work.draft, name))
        if cluster.get("transport_socket") is not None:
            work.note(f"{place}.pools.{name}: by TLS; if it is not vLLM, write `server: other`.")
        if not cluster.seq("load_assignment", "endpoints"):
            work.note(
                f"{place}.pools.{name}: its cluster does not list its servers; write them here as "
                "`endpoints: [http://HOST:PORT]`, so that the processor can ask for their health."
            )


def _more_pools(work: Work) -> None:
    """Pools asked for by name that the policy, written earlier, does not have yet."""
    path = ("node", "metadata", "forebay", "pools")
    for name in work.pools:
        if work.draft.get(*path).pair(name) is None:
            work.draft.add_pair(path, pair_of(work.reference.pool_lines[name]))
            named = ", and name it in `routing`: until then requests go there only if they ask for"
            named = "" if name in work.embedders else f"{named} its model"
            work.note(
                f"node.metadata.forebay.pools.{name}: new. Check its `model` and `slots`{named}."
            )


# --- the listener and its connection manager ---------------------------------------------------


def settings(work: Work, manager: Manager) -> None:
    draft, reference = work.draft, work.reference
    limit = "per_connection_buffer_limit_bytes"
    work.complete(manager.listener, reference.listener, (limit,))
    work.tell_if_lower(manager.listener, reference.listener, limit)

    special = ("@type", "stat_prefix", "route_config", "http_filters", "access_log")
    special += ("early_header_mutation_extensions", "local_reply_config")
    if manager.node.seq("original_ip_detection_extensions"):
        special += ("use_remote_address",)  # Envoy refuses both together
    added = work.complete(manager.path, reference.manager, without=special)
    if "use_remote_address" in added and manager.node.word("xff_num_trusted_hops"):
        work.note(
            f"{draft.where(*manager.path, 'xff_num_trusted_hops')}: with use_remote_address, "
            "now true, the address of the peer counts as one hop: check this number."
        )
    for key, value in reference.manager.pairs:
        theirs = manager.node.get(key.text)
        if theirs is None or key.text in special:
            continue
        if value.kind == "map":
            work.complete((*manager.path, key.text), value)
        elif theirs.text != value.text:
            work.note(
                f"{draft.where(*manager.path, key.text)}: {theirs.text} is yours and stays; "
                f"the reference config has {value.text}."
            )
    added += _early_headers(work, manager)
    added += _local_replies(work, manager)
    work.added_settings += added


def _early_headers(work: Work, manager: Manager) -> list[str]:
    """Ours come first: what the user's own mutations add afterwards stays."""
    key = "early_header_mutation_extensions"
    wanted = work.reference.manager.seq(key)[0]
    path: Path = (*manager.path, key)
    if work.complete(manager.path, work.reference.manager, (key,)):
        return [key]
    work.complete_list(path, [wanted], lambda mine, theirs: bool(kinds(mine) & kinds(theirs)), 0)
    extensions = work.draft.get(*path).seq()
    n = next(n for n, theirs in enumerate(extensions) if kinds(theirs) & kinds(wanted))
    mutations = ("typed_config", "mutations")
    added = work.complete_list(
        (*path, n, *mutations),
        wanted.seq(*mutations),
        lambda mine, theirs: work.reference.value(mine) == theirs.plain(),
        0,
    )
    return [key] if added else []


def _local_replies(work: Work, manager: Manager) -> list[str]:
    draft, reference = work.draft, work.reference
    key = "local_reply_config"
    path: Path = (*manager.path, key)
    if added := work.complete(manager.path, reference.manager, (key,)):
        return added
    if any("forebay_" in node.text for node in draft.get(*path).scalars()):
        return []
    mapper = reference.item(reference.manager.seq(key, "mappers")[0])
    if draft.find(*path, "mappers") is None:
        items = mapper.render(0, Anchors(reference.tree, 0))
        draft.add_pair(path, pair_of(f"mappers:\n{items}"))
    else:
        draft.add_item((*path, "mappers"), mapper, 0)
    work.note(
        f"{draft.where(*path)}: it stays, behind a first mapper that leaves Forebay's answers and "
        "direct responses as they are. What Envoy itself answers (401, 413, 504 ...) keeps your "
        "shape, not OpenAI's."
    )
    return []


# --- the filters -------------------------------------------------------------------------------


def filters(work: Work, manager: Manager) -> None:
    _refuse_other_processors(work)
    draft, reference = work.draft, work.reference
    path: Path = (*manager.path, "http_filters")
    theirs = manager.node.seq("http_filters")
    router = next((n for n, f in enumerate(theirs) if is_a(kinds(f), "Router")), None)
    if router is None:
        raise AttachError(
            f"{draft.where(*manager.path)}: http_filters has no router filter; add "
            "envoy.filters.http.router as the last one."
        )
    wanted = list(reference.filters)
    auth = next((f for f in theirs if is_a(kinds(f), *_AUTH)), None)
    if auth is not None:
        wanted = [f for f in wanted if not is_a(kinds(f), *_AUTH)]
        _tell_of_tenant(work, manager, theirs.index(auth))
    else:
        work.note(
            "Keys: every request now needs one. They are in /etc/forebay/api-keys.yaml: copy "
            "envoy/api-keys.yaml there and put your own in. Signed tokens instead: envoy/jwt.yaml; "
            "a mesh's header: envoy/mesh.yaml."
        )
    names = {f.word("name") for f in theirs}
    for mine in wanted:
        if any(reference.is_same_filter(mine, f) for f in theirs):
            continue
        if mine.word("name") in names:
            reference.rename(mine, "forebay." + mine.word("name").rpartition(".")[2])
    work.complete_list(path, wanted, reference.is_same_filter, router)


def _refuse_other_processors(work: Work) -> None:
    for node in work.draft.tree.root.maps():
        mine = any(word.text == "forebay" for word in node.scalars())
        if node.word("@type").endswith(".ext_proc.v3.ExternalProcessor") and not mine:
            raise AttachError(
                f"{work.draft.place(node)}: an ext_proc filter that is not Forebay's. Forebay "
                "takes the file's first one for its own; the other needs an Envoy of its own."
            )


def _tell_of_tenant(work: Work, manager: Manager, index: int) -> None:
    auth = manager.node.seq("http_filters")[index]
    header = work.reference.tenant_header
    if "config_discovery" not in auth.plain() and header not in {n.text for n in auth.scalars()}:
        work.note(
            f"{work.draft.where(*manager.path, 'http_filters', index)}: your auth filter stays, "
            f"and has to say who asks: let it set the header {header} (jwt_authn: "
            "claim_to_headers; ext_authz: allowed_upstream_headers). A request without it counts "
            "for the tenant `default`. Answers are cached by user only if it sets "
            f"{work.reference.user_header} too."
        )


def access_log(work: Work, manager: Manager) -> None:
    wanted = work.reference.manager.seq("access_log")
    work.complete(manager.path, work.reference.manager, ("access_log",))

    def same(mine: Node, theirs: Node) -> bool:
        config = ("typed_config", "log_name")
        return bool(kinds(mine) & kinds(theirs)) and theirs.word(*config) == mine.word(*config)

    path: Path = (*manager.path, "access_log")
    work.complete_list(path, wanted, same, len(work.draft.get(*path).seq()))


# --- the clusters ------------------------------------------------------------------------------


def clusters(work: Work) -> None:
    """The pools in the file's order, so that an anchor stands before its aliases."""
    paths = {name: cluster_path(work.draft, name) for name in work.pools}
    for name in sorted(work.pools, key=lambda name: paths[name]):
        _pool(work, name, paths[name], first=paths[name] == min(paths.values()))
    everything: Path = ("static_resources", "clusters")
    forebay = work.reference.forebay_cluster()
    theirs = work.draft.get(*everything).seq()
    if not any(cluster.word("name") == "forebay" for cluster in theirs):
        work.draft.add_item(everything, work.reference.item(forebay), len(theirs))


def _pool(work: Work, name: str, path: Path, *, first: bool) -> None:
    draft = work.draft
    wanted = work.reference.cluster(name, first=first)
    for field in _OLD_HTTP_FIELDS:
        if draft.find(*path, field) is not None:
            raise AttachError(
                f"{draft.where(*path, field)}: an old form, which Envoy would ignore beside what "
                "Forebay needs. Move it to typed_extension_protocol_options ("
                f"{_HTTP_OPTIONS}: explicit_http_config), and run this again."
            )
    without = ["name", "type", "load_assignment"]
    if draft.find(*path, "load_balancing_policy") is not None:
        without.append("lb_policy")
    work.complete(path, wanted, without=without)
    _limits(work, (*path, "circuit_breakers"), wanted)

    options = ("typed_extension_protocol_options", _HTTP_OPTIONS)
    mine = wanted.get(*options)
    assert mine
    if draft.find(*path, *options) is None:
        settings = wanted.get(options[0])
        assert settings
        work.complete((*path, options[0]), settings)
    work.complete((*path, *options), mine, ("http_filters",))
    here: Path = (*path, *options, "http_filters")
    *front, codec = mine.seq("http_filters")
    theirs = draft.get(*here).seq()
    # What removes the client's credential goes before what adds the tier's own.
    ends = [
        n for n, f in enumerate(theirs) if is_a(kinds(f), "CredentialInjector", "UpstreamCodec")
    ]
    work.complete_list(here, front, _same_upstream, min(ends, default=len(theirs)))
    work.complete_list(here, [codec], _same_upstream, len(draft.get(*here).seq()))
    if host := work.hosts.get(name):
        _host(work, here, host)


def _same_upstream(mine: Node, theirs: Node) -> bool:
    said = [any("x-forebay-tier" in n.text for n in node.scalars()) for node in (mine, theirs)]
    return bool(kinds(mine) & kinds(theirs)) and said[0] == said[1]


def _limits(work: Work, path: Path, cluster: Node) -> None:
    """The missing ones of the default priority; what the user set stays, also if it is lower."""
    wanted = cluster.get("circuit_breakers")
    assert wanted
    work.complete(path, wanted)
    thresholds = work.draft.get(*path, "thresholds").seq()
    usual = [n for n, t in enumerate(thresholds) if t.word("priority") in ("", "DEFAULT", "0")]
    if not usual:
        item = wanted.seq("thresholds")[0]
        work.draft.add_item((*path, "thresholds"), work.reference.item(item), 0)
        return
    here: Path = (*path, "thresholds", usual[0])
    limits = wanted.seq("thresholds")[0]
    for key, value in limits.pairs:
        if work.draft.find(*here, key.text) is None:
            work.draft.add_pair(here, pair_of(f"{key.text}: {value.text}"))
        work.tell_if_lower(here, limits, key.text)
    if work.draft.find(*here, "retry_budget") is not None:
        work.note(
            f"{work.draft.where(*here, 'retry_budget')}: it stays, and it kills fallback: of many "
            "requests whose first pool fails, most are not tried on the next. Better remove it."
        )


def _host(work: Work, path: Path, host: str) -> None:
    """What a route said by host_rewrite_literal, said for the tier instead."""
    for n, theirs in enumerate(work.draft.get(*path).seq()):
        mutations = ("typed_config", "mutations", "request_mutations")
        headers = [m.word("append", "header", "key") for m in theirs.seq(*mutations)]
        if "x-forebay-tier" in headers and "x-forebay-tier-host" not in headers:
            piece = item_of(work.reference.tier_mutation("x-forebay-tier-host", host))
            work.draft.add_item((*path, n, *mutations), piece, len(headers))


# --- around it all -----------------------------------------------------------------------------


def around(work: Work) -> None:
    work.complete((), work.reference.root, ("admin", "overload_manager"))
