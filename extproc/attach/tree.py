"""A YAML text as a tree of nodes that know where they stand in it. It reads, and changes nothing.

Positions are indices into the text. A comment is what lies between nodes, so nothing is lost.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from extproc.attach.errors import AttachError

# libyaml's parser is ten times faster and sets the same marks (a test compares the two).
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True, eq=False)
class Node:
    """A mapping, a sequence, a scalar, or an alias of one of them."""

    kind: Literal["map", "seq", "scalar", "alias"]
    mark: int
    """Where it begins, its anchor and tag included."""
    start: int
    """Where its content begins; a block sequence's at the first dash."""
    end: int
    flow: bool = False
    """Written in braces or brackets."""
    inline: bool = False
    """It stands in braces or brackets."""
    anchor: str = ""
    text: str = ""
    """A scalar's value, unquoted; never interpreted (true is the text `true`)."""
    pairs: "list[tuple[Node, Node]]" = field(default_factory=list["tuple[Node, Node]"])
    items: "list[Node]" = field(default_factory=list["Node"])
    target: "Node | None" = None

    @property
    def real(self) -> "Node":
        """Itself, or what it is an alias of."""
        return self.target or self

    @property
    def empty(self) -> bool:
        """Null, {} or []: it has nothing to insert beside."""
        if self.kind == "scalar":
            return self.text in ("", "~", "null")
        return not self.pairs and not self.items

    def pair(self, key: str) -> "tuple[Node, Node] | None":
        """Envoy takes `statPrefix` for `stat_prefix`, and so do we."""
        return next((pair for pair in self.real.pairs if _snake(pair[0].text) == key), None)

    def get(self, *path: str | int) -> "Node | None":
        """What stands there, aliases followed; None where the path ends before."""
        node = self.real
        for part in path:
            if isinstance(part, int):
                found = node.items[part] if part < len(node.items) else None
            else:
                pair = node.pair(part)
                found = pair[1] if pair else None
            if found is None:
                return None
            node = found.real
        return node

    def word(self, *path: str | int) -> str:
        """The text of the scalar there, or ''."""
        found = self.get(*path)
        return found.text if found else ""

    def seq(self, *path: str | int) -> "list[Node]":
        """The items of the sequence there, aliases followed; [] if there is none."""
        found = self.get(*path)
        return [item.real for item in found.items] if found else []

    def scalars(self) -> "Iterator[Node]":
        """Every scalar in it that is a value, aliases followed."""
        node = self.real
        if node.kind == "scalar":
            yield node
        for child in (*(value for _, value in node.pairs), *node.items):
            yield from child.scalars()

    def maps(self) -> "Iterator[Node]":
        """Every mapping in it, aliases followed."""
        node = self.real
        if node.kind == "map":
            yield node
        for child in (*(value for _, value in node.pairs), *node.items):
            yield from child.maps()

    def plain(self) -> Any:
        """Dicts, lists and texts, to compare with another's."""
        node = self.real
        if node.kind == "map":
            return {key.text: value.plain() for key, value in node.pairs}
        if node.kind == "seq":
            return [item.plain() for item in node.items]
        return node.text


def _snake(key: str) -> str:
    if key.isalnum() and not key.islower() and key[0].islower():
        return re.sub("[A-Z]", lambda match: "_" + match[0].lower(), key)
    return key


class Tree:
    def __init__(self, text: str) -> None:
        self.text = text
        self.anchors: list[Node] = []
        self.aliases: list[Node] = []
        self._named: dict[str, Node] = {}
        try:
            self._events: Iterator[Any] = iter(yaml.parse(text, Loader=LOADER))
            self.root = self._document()
        except yaml.YAMLError as error:
            raise AttachError(f"not YAML: {error}") from error

    def _document(self) -> Node:
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise AttachError("the file is empty")
        root = self._node(next(self._events))
        next(self._events)
        extra = next(self._events)
        line = extra.start_mark.line + 1
        if not isinstance(extra, yaml.StreamEndEvent):
            raise AttachError(f"line {line}: a second YAML document; Envoy reads one only")
        return root

    def _node(self, event: Any) -> Node:
        mark, end = event.start_mark.index, event.end_mark.index
        anchor, line = event.anchor, event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            target = self._named.get(anchor)
            if target is None:
                raise AttachError(f"line {line}: there is no anchor named {anchor!r} above")
            alias = Node("alias", mark, mark, end, target=target)
            self.aliases.append(alias)
            return alias
        start = mark
        if anchor or event.tag:
            start += len(self._properties(mark))
        if isinstance(event, yaml.ScalarEvent):
            node = Node("scalar", mark, start, end, text=event.value)
            if event.style in ("|", ">"):
                node.end = start + len(self.text[start:end].rstrip())
        elif isinstance(event, yaml.MappingStartEvent):
            node = Node("map", mark, start, end, flow=bool(event.flow_style))
            while not isinstance(event := next(self._events), yaml.MappingEndEvent):
                key = self._node(event)
                node.pairs.append((key, self._node(next(self._events))))
            self._close(node, event, [value for _, value in node.pairs])
            if not node.flow:
                node.start = node.pairs[0][0].mark
        else:
            node = Node("seq", mark, start, end, flow=bool(event.flow_style))
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                node.items.append(self._node(event))
            self._close(node, event, node.items)
            if not node.flow:
                node.start = self.dash(node.items[0])
        if anchor:
            node.anchor = anchor
            self.anchors.append(node)
            self._named[anchor] = node
        return node

    def _properties(self, mark: int) -> str:
        """Anchor and tag, with the blanks after them."""
        match = re.compile(r"(?:[&!][^\s,\[\]{}]*[ \t]*)+").match(self.text, mark)
        return match[0] if match else ""

    def _close(self, node: Node, event: Any, children: list[Node]) -> None:
        # A block's end event stands where the next thing begins, beyond blank lines and comments.
        node.end = event.end_mark.index if node.flow else children[-1].end
        for child in children:
            child.inline = node.flow

    # --- lines ---------------------------------------------------------------------------------

    def line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def line_end(self, at: int) -> int:
        """Behind its line break, or the end of the text."""
        found = self.text.find("\n", at)
        return len(self.text) if found < 0 else found + 1

    def column(self, at: int) -> int:
        return at - self.line_start(at)

    def dash(self, item: Node) -> int:
        """The position of the dash before an item of a block sequence."""
        start, stop = self.line_start(item.mark), item.mark
        while stop > 0:
            before = re.sub(r"(^|\s)#.*", "", self.text[start:stop]).rstrip()
            if before.endswith("-"):
                return start + len(before) - 1
            start, stop = self.line_start(start - 1) if start else 0, start
        raise AssertionError("no item of a block sequence")

    def lead(self, at: int) -> int:
        """Where the comment lines directly above begin that stand in the same column."""
        column, first = self.column(at), self.line_start(at)
        while first > 0:
            line = self.text[(start := self.line_start(first - 1)) : first]
            if line.find("#") != column or line[:column].strip():
                return first
            first = start
        return first

    def below(self, end: int, column: int) -> int:
        """Behind the line in which something ends, and behind the comments below that are
        indented deeper than its `column`: they belong to it."""
        at = self.line_end(end)
        while at < len(self.text):
            line = self.text[at : (stop := self.line_end(at))]
            if not line.lstrip(" ").startswith("#") or line.find("#") <= column:
                return at
            at = stop
        return at
