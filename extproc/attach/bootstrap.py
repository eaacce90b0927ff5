"""What an Envoy bootstrap says of listeners, routes and clusters, as far as `attach` asks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extproc.attach.draft import Draft, Path
from extproc.attach.errors import AttachError
from extproc.attach.tree import Node

OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions")
EMBEDDINGS_PATH = "/v1/embeddings"
ADMIT_HEADER = "x-forebay-admit"

_CONDITIONS = ("headers", "query_parameters", "runtime_fraction", "tls_context", "grpc")


@dataclass(frozen=True)
class Route:
    """One route of a virtual host; to print it, what it matches."""

    node: Node
    path: Path

    @property
    def admits(self) -> bool:
        """Only what the processor admitted takes it."""
        return any(h.word("name") == ADMIT_HEADER for h in self.node.seq("match", "headers"))

    @property
    def unconditional(self) -> bool:
        match = self.node.get("match")
        return match is not None and not any(match.get(key) for key in _CONDITIONS)

    @property
    def catches_all(self) -> bool:
        return self.node.word("match", "prefix") == "/"

    def takes(self, path: str) -> bool:
        """Whether a request to this path may take it, whatever else it asks for."""
        match = self.node.get("match")
        if match is None or match.get("grpc") or match.get("connect_matcher"):
            return False
        if exact := match.word("path"):
            return path == exact
        if prefix := match.word("path_separated_prefix"):
            return path == prefix or path.startswith(prefix + "/")
        if regex := match.word("safe_regex", "regex"):
            try:
                return bool(re.fullmatch(regex, path))
            except re.error:
                return True  # RE2 knows more than Python
        return path.startswith(match.word("prefix"))

    @property
    def only_embeds(self) -> bool:
        """Of the paths that Forebay serves it takes this one alone."""
        return self.takes(EMBEDDINGS_PATH) and not any(self.takes(path) for path in OPENAI_PATHS)

    @property
    def destinations(self) -> list[str]:
        """The clusters it may lead to, as far as it names them."""
        action = self.node.get("route")
        if action is None:
            return []
        groups = action.seq(
            "inline_cluster_specifier_plugin", "extension", "typed_config", "priority_groups"
        )
        names = [action.word("cluster")]
        names += [c.word("name") for c in action.seq("weighted_clusters", "clusters")]
        names += [c.word("cluster_name") for group in groups for c in group.seq("clusters")]
        return [name for name in names if name]

    @property
    def action(self) -> Node:
        """What stands under `route`; only where it has destinations."""
        found = self.node.get("route")
        assert found
        return found

    def __str__(self) -> str:
        match = self.node.get("match")
        said = match.pairs[0] if match and match.pairs else None
        return f"{said[0].text} {said[1].plain()}" if said else "no match"


@dataclass(frozen=True)
class Manager:
    """An HTTP connection manager."""

    draft: Draft
    path: Path

    @property
    def node(self) -> Node:
        return self.draft.get(*self.path)

    @property
    def listener(self) -> Path:
        return self.path[:3]

    @property
    def listener_name(self) -> str:
        name = self.draft.get(*self.listener).word("name")
        return name or f"number {int(self.path[2]) + 1}, without a name"

    @property
    def hosts(self) -> Path:
        return (*self.path, "route_config", "virtual_hosts")

    def routes(self, host: int | None = None) -> list[Route]:
        hosts = self.node.seq("route_config", "virtual_hosts")
        return [
            Route(route, (*self.hosts, n, "routes", m))
            for n, virtual_host in enumerate(hosts)
            if host in (None, n)
            for m, route in enumerate(virtual_host.seq("routes"))
        ]

    @property
    def is_attached(self) -> bool:
        """Our filter or our admit routes are there."""
        filters = self.node.seq("http_filters")
        processors = [f for f in filters if is_a(kinds(f), "ExternalProcessor")]
        return any(route.admits for route in self.routes()) or any(
            node.text == "forebay" for f in processors for node in f.scalars()
        )

    def leads_to(self, clusters: Sequence[str]) -> bool:
        return any(name in clusters for route in self.routes() for name in route.destinations)

    def reached(self, *, catch_all: bool) -> list[str]:
        """The clusters to which a request for a completion can come now, in order: by routes that
        match its path, or by those that match every path."""
        found: list[str] = []
        for host, _ in enumerate(self.node.seq("route_config", "virtual_hosts")):
            for path in OPENAI_PATHS:
                for route in self.routes(host):
                    if route.takes(path):
                        if route.catches_all == catch_all:
                            found += route.destinations
                        if route.unconditional:
                            break
        return list(dict.fromkeys(found))


def kinds(node: Node) -> set[str]:
    """The types of a filter's config, without their prefix."""
    found = [node.word("typed_config", "@type")]
    found += [item.text for item in node.seq("config_discovery", "type_urls")]
    return {name.rpartition("/")[2] for name in found if name}


def is_a(types: set[str], *names: str) -> bool:
    return any(kind.rpartition(".")[2] in names for kind in types)


def managers(draft: Draft) -> Iterator[Manager]:
    """All of the file's, each once, however many filter chains share it by an alias."""
    seen: set[Node] = set()
    for path in _network_filters(draft):
        node = draft.get(*path)
        if any(kind.endswith(".HttpConnectionManager") for kind in kinds(node)):
            config = draft.get(*path, "typed_config")
            if config not in seen:
                seen.add(config)
                yield Manager(draft, (*path, "typed_config"))


def _network_filters(draft: Draft) -> Iterator[Path]:
    listeners: Path = ("static_resources", "listeners")
    root = draft.tree.root
    for n, listener in enumerate(root.seq(*listeners)):
        chains: list[Path] = [
            (*listeners, n, "filter_chains", m) for m, _ in enumerate(listener.seq("filter_chains"))
        ]
        for chain in (*chains, (*listeners, n, "default_filter_chain")):
            for k, _ in enumerate(root.seq(*chain, "filters")):
                yield (*chain, "filters", k)


def cluster_path(draft: Draft, name: str) -> Path:
    """The place of the static cluster of this name."""
    clusters = draft.tree.root.seq("static_resources", "clusters")
    for n, cluster in enumerate(clusters):
        if cluster.word("name") == name:
            return ("static_resources", "clusters", n)
    there = ", ".join(cluster.word("name") for cluster in clusters) or "none"
    raise AttachError(
        f"static_resources.clusters: no cluster is named {name!r} (there are: {there}). A pool is "
        "a static cluster; if yours come by CDS, write this one into the file."
    )
