"""One attachment under way: the draft, the reference, and the few ways in which steps add to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from extproc.attach.bootstrap import Manager, is_a, kinds
from extproc.attach.draft import Draft, Path
from extproc.attach.reference import Reference
from extproc.attach.tree import Node


@dataclass
class Work:
    draft: Draft
    reference: Reference
    pools: list[str]
    """In order of preference."""
    models: dict[str, str]
    managers: list[Manager]
    """Those that get the filters and the admit routes."""
    note: Callable[[str], None]
    embedders: list[str] = field(default_factory=list[str])
    """Those of the pools that serve embeddings."""
    hosts: dict[str, str] = field(default_factory=dict[str, str])
    """By pool: the host name that its servers expect, from the routes that gave way."""
    added_settings: list[str] = field(default_factory=list[str])
    """What was added to the connection manager and holds for all its routes."""

    def tell_if_lower(self, path: Path, wanted: Node, key: str) -> None:
        """Of a number that the user set below the reference's."""
        value = self.draft.get(*path).word(key)
        if value.isdigit() and int(value) < int(wanted.word(key)):
            self.note(
                f"{self.draft.where(*path, key)}: {value} is yours and stays; the reference config "
                f"has {wanted.word(key)}."
            )

    def our_filters(self, manager: Manager) -> list[str]:
        """The names of the filters that act for Forebay only."""
        return [
            theirs.word("name")
            for theirs in manager.node.seq("http_filters")
            if not is_a(kinds(theirs), "Router")
            and any(self.reference.is_same_filter(mine, theirs) for mine in self.reference.filters)
        ]

    def complete(
        self, path: Path, wanted: Node, keys: Sequence[str] = (), without: Sequence[str] = ()
    ) -> list[str]:
        """Add the keys of a mapping of the reference that the user's there lacks (of all, or of
        `keys`); those that were added."""
        added: list[str] = []
        names = [key.text for key, _ in wanted.pairs]
        for n, name in enumerate(names):
            if (keys and name not in keys) or name in without:
                continue
            if self.draft.get(*path).pair(name) is None:
                self.draft.add_pair(path, self.reference.pair(wanted, name), names[:n])
                added.append(name)
        return added

    def complete_list(
        self,
        path: Path,
        wanted: Sequence[Node],
        same: Callable[[Node, Node], bool],
        otherwise: int,
        *,
        below_comments: bool = False,
    ) -> list[Node]:
        """Add the items of a list of the reference that the user's list there lacks, each before
        the next of them that is there, or behind the last, or else at `otherwise` (see
        Draft.add_item for `below_comments`); those that were added."""
        added: list[Node] = []
        places = self._places(path, wanted, same)
        for n, item in enumerate(wanted):
            if places[n] is None:
                at = slot(places, n, otherwise)
                alone = below_comments and all(place is None for place in places)
                self.draft.add_item(path, self.reference.item(item), at, below_comments=alone)
                added.append(item)
                places = self._places(path, wanted, same)
        return added

    def _places(
        self, path: Path, wanted: Sequence[Node], same: Callable[[Node, Node], bool]
    ) -> list[int | None]:
        """Where each stands in the user's list there."""
        theirs = self.draft.get(*path).seq()
        return [
            next((n for n, node in enumerate(theirs) if same(mine, node)), None) for mine in wanted
        ]


def slot(places: Sequence[int | None], n: int, otherwise: int) -> int:
    """Where the n-th of a list goes, `places` saying where its others stand."""
    later = next((at for at in places[n + 1 :] if at is not None), None)
    if later is not None:
        return later
    earlier = next((at for at in reversed(places[:n]) if at is not None), None)
    return otherwise if earlier is None else earlier + 1
