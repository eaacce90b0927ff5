"""The reference config as the source of every piece, with the user's names in it."""

import json
from collections.abc import Collection, Iterator, Mapping

from extproc.attach.bootstrap import kinds
from extproc.attach.source import Source, scalar
from extproc.attach.tree import Node

# These types serve many purposes: ours is the one that says this word.
_OURS_SAYS = {
    "ExternalProcessor": "forebay",
    "SseToMetadata": "llm",
    "LocalRateLimit": "gateway_guard",
}


class Reference(Source):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.policy = self._get("node", "metadata", "forebay")
        self.listener = self._get("static_resources", "listeners", 0)
        self.manager = self._get(
            *("static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
        )
        self.filters = self.manager.seq("http_filters")
        self.virtual_host = self._get_in(self.manager, "route_config", "virtual_hosts", 0)
        self.routes = self.virtual_host.seq("routes")
        self.tenant_header = self.policy.word("tenant_header")
        self.user_header = self.policy.word("user_header")
        self.pool_lines: dict[str, str] = {}
        """Each pool as the policy says it."""
        self._pools = [key.text for key, _ in self._get_in(self.policy, "pools").pairs]

    def _get(self, *path: str | int) -> Node:
        return self._get_in(self.root, *path)

    @staticmethod
    def _get_in(node: Node, *path: str | int) -> Node:
        found = node.get(*path)
        assert found, f"the reference config has no {path}"
        return found

    # --- the user's names ----------------------------------------------------------------------

    def use_tenant_header(self, name: str) -> None:
        self._rename_all(self.tenant_header, name)
        self.tenant_header = name

    def use_user_header(self, name: str) -> None:
        self._rename_all(self.user_header, name)
        self.user_header = name

    def _rename_all(self, old: str, new: str) -> None:
        for node in self.root.scalars():
            if node.text == old:
                self.changes[node] = scalar(new)

    def leave_embeddings(self) -> None:
        """To a route of the user's: ours do not match their path."""
        for node in self.virtual_host.scalars():
            if "|embeddings" in node.text:
                self.changes[node] = json.dumps(node.text.replace("|embeddings", ""))

    def use_pools(
        self,
        models: Mapping[str, str],
        slots: Mapping[str, int],
        contexts: Mapping[str, int],
        embedders: Collection[str] = (),
    ) -> None:
        """`models`: each pool's, in order of preference: the first is the small one. `embedders`:
        those that serve embeddings."""
        names = list(models)
        for name in names:
            said = [f"model: {scalar(models[name])}", f"slots: {slots.get(name, 32)}"]
            said += [f"context: {contexts[name]}"] if name in contexts else []
            said += ["serves: embeddings"] if name in embedders else []
            self.pool_lines[name] = f"{scalar(name)}: {{{', '.join(said)}}}"
        self._change(
            self._get_in(self.policy, "pools"),
            "# slots: the requests that each server takes at once (vLLM: --max-num-seqs);",
            "# context: tokens of prompt and answer together (--max-model-len). For the costs:",
            "# price: {input: 0.10, output: 0.40}, in US dollars per million tokens.",
            *self.pool_lines.values(),
        )
        texts = [name for name in names if name not in embedders] or names
        for node in self.policy.scalars():
            if node.text in self._pools:
                index = min(self._pools.index(node.text), len(texts) - 1)
                self._change(node, scalar(texts[index]))
        lists = list[str]()
        for name in texts:
            tiers = [name, *(other for other in texts if other != name)]
            lists.append(f"{scalar(name)}: [{', '.join(map(scalar, tiers))}]")
        self._change(self._get_in(self.policy, "routing", "fallback"), f"{{{', '.join(lists)}}}")
        # Nothing has a price yet, of which it could be a part.
        self._change(self._get_in(self.policy, "costs", "batch_price"), "1")
        for groups in self._all(self.root, "priority_groups"):
            self._change(groups, *(f"- {self.priority_group(name)}" for name in names))

    def priority_group(self, name: str) -> str:
        """The tier of one pool, without a dash."""
        group = next(self._all(self.root, "priority_groups")).items[0]
        return self.filled(group, {self._pools[0]: name})

    def cluster(self, name: str, *, first: bool) -> Node:
        """A pool's cluster under this name; what several have alike is explained in the first."""
        like = self._pools[0 if first else 1]
        clusters = self.root.seq("static_resources", "clusters")
        cluster = next(node for node in clusters if node.word("name") == like)
        for header in self._all(cluster, "header"):
            if header.word("value") == like:
                self.changes[self._get_in(header, "value")] = scalar(name)
        return cluster

    def tier_mutation(self, header: str, value: str) -> str:
        """What sets another header for a tier, without a dash."""
        like = self._pools[0]
        cluster = self.cluster(like, first=True)
        mutation = next(self._all(cluster, "request_mutations")).items[0]
        return self.filled(mutation, {"x-forebay-tier": header, like: value})

    def forebay_cluster(self) -> Node:
        clusters = self.root.seq("static_resources", "clusters")
        return next(node for node in clusters if node.word("name") == "forebay")

    def rename(self, node: Node, name: str) -> None:
        self.changes[self._get_in(node, "name")] = scalar(name)

    def filled(self, node: Node, words: Mapping[str, str]) -> str:
        """A node's text with other scalars in it."""
        text, at = "", node.start
        for word in node.scalars():
            if word.text in words:
                text += self.tree.text[at : word.start] + scalar(words[word.text])
                at = word.end
        return text + self.tree.text[at : node.end]

    def _change(self, node: Node, *lines: str) -> None:
        self.changes[node] = ("\n" + " " * self.tree.column(node.start)).join(lines)

    def _all(self, node: Node, key: str) -> Iterator[Node]:
        for name, value in node.real.pairs:
            if name.text == key:
                yield value.real
            yield from self._all(value, key)
        for item in node.real.items:
            yield from self._all(item, key)

    # --- what is ours --------------------------------------------------------------------------

    def is_same_filter(self, mine: Node, theirs: Node) -> bool:
        """Whether a filter of the user's file is this one of the reference."""
        if not kinds(mine) & kinds(theirs):
            return False
        kind = next(iter(kinds(mine))).rpartition(".")[2]
        if kind == "Lua":
            word = "hide_usage" if _says(mine, "hide_usage") else "facts.uncounted"
            return _says(theirs, word)
        if kind in _OURS_SAYS:
            return any(node.text == _OURS_SAYS[kind] for node in theirs.scalars())
        return mine.word("name") == theirs.word("name")


def _says(lua: Node, word: str) -> bool:
    return any(word in node.text for node in lua.scalars())
