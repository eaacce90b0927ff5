"""What an earlier version of Forebay put into the file: its own texts (Lua, the log's body) become
this version's, and lists of ours get what is new. Values that a policy may choose stay."""

from extproc.attach.bootstrap import Route, cluster_path, is_a, kinds
from extproc.attach.draft import Path
from extproc.attach.tree import Node
from extproc.attach.work import Work

_ALONE = "(chat/)?completions"
_PARSED = {("llm", key) for key in ("prompt_tokens", "completion_tokens", "cached_tokens")}
_LUA = ("typed_config", "default_source_code")


def renew(work: Work) -> None:
    """After all steps that add whole pieces: what these added is new already."""
    for manager in work.managers:
        path: Path = (*manager.path, "http_filters")
        for n, theirs in enumerate(manager.node.seq("http_filters")):
            for mine in work.reference.filters:
                if work.reference.is_same_filter(mine, theirs):
                    _filter(work, (*path, n), mine)
        _json_parser(work, path)
        _local_replies(work, manager.path)
        _access_log(work, manager.path)
        for host, _ in enumerate(manager.node.seq("route_config", "virtual_hosts")):
            for route in manager.routes(host):
                if route.admits:
                    _admit_route(work, route)
                _embeddings(work, route)
    for name in work.pools:
        _tier(work, cluster_path(work.draft, name))
    _retries(work)


def _filter(work: Work, path: Path, mine: Node) -> None:
    if is_a(kinds(mine), "Lua"):
        _text(work, (*path, *_LUA), mine.get(*_LUA), "inline_string")
    elif is_a(kinds(mine), "ExternalProcessor"):
        typed = _found(mine, "typed_config")
        work.complete((*path, "typed_config"), typed, ("max_message_timeout",))
        key = ("typed_config", "metadata_options", "receiving_namespaces", "untyped")
        if (theirs := work.draft.find(*path, *key)) is not None:
            work.complete_list((*path, *key), mine.seq(*key), _same_text, len(theirs.items))


def _json_parser(work: Work, filters: Path) -> None:
    """Counted JSON answers in an earlier version. One to which the user gave rules stays."""
    for n, theirs in reversed(list(enumerate(work.draft.get(*filters).seq()))):
        if not is_a(kinds(theirs), "JsonToMetadata"):
            continue
        told = [(m.word("metadata_namespace"), m.word("key")) for m in theirs.maps()]
        told = [(namespace, key) for namespace, key in told if namespace]
        if told and _PARSED.issuperset(told) and not theirs.get("typed_config", "request_rules"):
            work.note(
                f"{work.draft.where(*filters, n)}: {theirs.word('name')} is removed: it parsed "
                "each JSON answer whole, and Forebay's Lua filter counts now."
            )
            work.draft.remove_item(filters, n)


def _local_replies(work: Work, manager: Path) -> None:
    """An answer more, for a broken file of keys. Where the user has shapes of his own they stay."""
    mappers: Path = ("local_reply_config", "mappers")
    theirs = work.draft.find(*manager, *mappers)
    said = [node.text for node in theirs.scalars()] if theirs else []
    if "NFCF" in said or not any("upstream_unavailable" in text for text in said):
        return
    ours = work.reference.manager.seq(*mappers)
    at = next(n for n, one in enumerate(ours) if one.get("filter", "response_flag_filter"))
    work.draft.add_item((*manager, *mappers), work.reference.item(ours[at]), at)


def _access_log(work: Work, manager: Path) -> None:
    mine = work.reference.manager.seq("access_log")[0]
    name = mine.word("typed_config", "log_name")
    path: Path = (*manager, "access_log")
    for n, log in enumerate(work.draft.get(*path).seq()):
        earlier = log.word("typed_config", "common_config", "log_name")
        if is_a(kinds(log), "HttpGrpcAccessLogConfig") and earlier == name:
            work.note(f"{work.draft.where(*path, n)}: an earlier version's; removed.")
            work.draft.remove_item(path, n)
            break
    for n, log in enumerate(work.draft.get(*path).seq()):
        if log.word("typed_config", "log_name") == name:
            body = ("typed_config", "body")
            _text(work, (*path, n, *body), mine.get(*body), "string_value")


def _admit_route(work: Work, route: Route) -> None:
    ours = [r for r in work.reference.routes if Route(r, ()).admits]
    ours = next((r for r in ours if r.word("name") == route.node.word("name")), ours[0])

    def same_name(mine: Node, theirs: Node) -> bool:
        return str(work.reference.value(mine)).lower() == theirs.text.lower()

    for key, same in (
        ("request_headers_to_remove", same_name),
        ("response_headers_to_add", _same_header),
    ):
        if not work.complete(route.path, ours, (key,)):
            path: Path = (*route.path, key)
            theirs = work.draft.get(*path).seq()
            work.complete_list(path, ours.seq(key), same, len(theirs))
    work.complete((*route.path, "route"), _found(ours, "route"), ("hash_policy",))


def _embeddings(work: Work, route: Route) -> None:
    """A path more, where ours match none but those of an earlier version."""
    at = ("match", "safe_regex")
    ours = (r for r in work.reference.routes if r.word("name") == route.node.word("name"))
    wanted = next((r.get(*at) for r in ours if "embeddings" in r.word(*at, "regex")), None)
    if wanted is None or (node := wanted.get("regex")) in work.reference.changes or not node:
        return
    without = node.text.replace("|embeddings", "")
    if route.node.word(*at, "regex") in (without, without.replace("((chat/)?completions)", _ALONE)):
        work.draft.replace_scalar((*route.path, *at), "regex", work.reference, wanted)


def _tier(work: Work, cluster: Path) -> None:
    path: Path = (*cluster, "typed_extension_protocol_options")
    ours = work.reference.cluster(work.pools[0], first=True).get(str(path[-1]))
    assert ours
    options = ours.pairs[0][0].text
    wanted = next(f for f in ours.seq(options, "http_filters") if is_a(kinds(f), "Lua"))
    for n, theirs in enumerate(work.draft.get(*path).seq(options, "http_filters")):
        if is_a(kinds(theirs), "Lua") and any("x-forebay-tier" in w.text for w in theirs.scalars()):
            here: Path = (*path, options, "http_filters", n, *_LUA)
            _text(work, here, wanted.get(*_LUA), "inline_string")


def _retries(work: Work) -> None:
    """Of calls to the processor: an earlier version had them at the filter."""
    ours = work.reference.forebay_cluster()
    ((options, wanted),) = _found(ours, "typed_extension_protocol_options").pairs
    path: Path = (*cluster_path(work.draft, ours.word("name")), "typed_extension_protocol_options")
    if work.draft.find(*path, options.text) is None:
        return
    work.complete((*path, options.text), wanted, ("retry_policy",))
    for manager in work.managers:
        for n, theirs in enumerate(manager.node.seq("http_filters")):
            service: Path = (*manager.path, "http_filters", n, "typed_config", "grpc_service")
            leads_to = theirs.word("typed_config", "grpc_service", "envoy_grpc", "cluster_name")
            if leads_to != ours.word("name") or not work.draft.find(*service, "retry_policy"):
                continue
            work.note(
                f"{work.draft.where(*service, 'retry_policy')}: removed; the cluster {leads_to} "
                "has one, which Envoy obeys. If you had changed this one, change that."
            )
            work.draft.remove_pair(service, "retry_policy")


def _text(work: Work, path: Path, wanted: Node | None, key: str) -> None:
    """A text that is Forebay's alone, as this version has it."""
    theirs = work.draft.find(*path, key)
    if wanted is None or theirs is None or theirs.text == wanted.word(key):
        return
    work.note(
        f"{work.draft.where(*path, key)}: not this version's; it is now. If you had changed it, "
        "change it again."
    )
    work.draft.replace_scalar(path, key, work.reference, wanted)


def _found(node: Node, *path: str) -> Node:
    found = node.get(*path)
    assert found, path
    return found


def _same_text(mine: Node, theirs: Node) -> bool:
    return mine.text == theirs.text


def _same_header(mine: Node, theirs: Node) -> bool:
    return mine.word("header", "key") == theirs.word("header", "key").lower()
