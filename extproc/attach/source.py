"""Pieces of YAML text, cut out of one text with their comments, to be put into another.

An anchor that the other text has already, with the same value, is used there by an alias; one that
it does not have is written out. So a piece is complete wherever it is put.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from extproc.attach.tree import Node, Tree


def scalar(value: str) -> str:
    """The value as YAML that is read as that text (Envoy takes also `y` and `n` for booleans)."""
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]+", value) and yaml.safe_load(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)


def shifted(text: str, columns: int) -> str:
    """Every line moved to the right, or to the left by a negative number."""
    if columns < 0:
        return re.sub(rf"^ {{1,{-columns}}}", "", text, flags=re.MULTILINE)
    return re.sub(r"^(?=.*\S)", " " * columns, text, flags=re.MULTILINE)


class Anchors:
    """The anchors that can be used at one place of a text."""

    def __init__(self, tree: Tree, at: int) -> None:
        self._taken = {node.anchor for node in tree.anchors}
        self._known: dict[str, Any] = {}
        for node in sorted(tree.anchors, key=lambda node: node.mark):
            if node.end <= at:
                self._known[node.anchor] = node.plain()
            elif node.mark < at:  # the place is inside it
                self._known.pop(node.anchor, None)

    def choose(self, name: str, value: Any) -> tuple[str, bool]:
        """The name to use for a value, and whether it is known already; else it is from now on."""
        names = [name, f"forebay_{name}", *(f"forebay_{name}_{n}" for n in range(2, 100))]
        for candidate in names:
            if candidate in self._known and self._known[candidate] == value:
                return candidate, True
        free = next(candidate for candidate in names if candidate not in self._taken)
        self._taken.add(free)
        self._known[free] = value
        return free, False


class Source:
    """A text to cut from. `changes`: what to write in the place of a node."""

    def __init__(self, text: str) -> None:
        self.tree = Tree(text)
        self.root = self.tree.root
        self.changes: dict[Node, str] = {}

    def pair(self, node: Node, key: str) -> "Piece":
        """One key of a mapping with its value."""
        found = node.pair(key)
        assert found, key
        if node.flow:
            return pair_of(self._text(found[0]) + ": " + self._text(found[1]))
        return self._piece(found[0].mark, found[1])

    def item(self, node: Node) -> "Piece":
        """One item of a list."""
        if node.inline:
            return item_of(self._text(node))
        return self._piece(self.tree.dash(node), node)

    def _text(self, node: Node) -> str:
        return self.tree.text[node.mark : node.end]

    def _piece(self, begin: int, node: Node) -> "Piece":
        column = self.tree.column(begin)
        beside_a_dash = self.tree.text[self.tree.line_start(begin) : begin].strip()
        lead = begin if beside_a_dash else self.tree.lead(begin)
        end = self.tree.below(node.end, column)
        blanks = (self.tree.text[:lead].endswith("\n\n"), self.tree.text[end:].startswith("\n"))
        return Piece(self, node, lead, end, column, *blanks)

    def value(self, node: Node) -> Any:
        """As Node.plain, with the changes."""
        node = node.real
        if node in self.changes:
            return Tree(" " * self.tree.column(node.start) + self.changes[node]).root.plain()
        if node.kind == "map":
            return {key.text: self.value(value) for key, value in node.pairs}
        if node.kind == "seq":
            return [self.value(item) for item in node.items]
        return node.text

    def render(self, piece: "Piece", anchors: Anchors) -> str:
        return self._with(piece.begin, piece.end, self._changed(piece.node, piece.column, anchors))

    def _with(self, begin: int, end: int, changes: Iterator[tuple[int, int, str]]) -> str:
        """The text from `begin` to `end`, with the changes from start to stop."""
        parts: list[str] = []
        for start, stop, new in changes:
            parts += [self.tree.text[begin:start], new]
            begin = stop
        return "".join([*parts, self.tree.text[begin:end]])

    def _changed(self, node: Node, parent: int, anchors: Anchors) -> Iterator[tuple[int, int, str]]:
        """What changes in a node, whose key or dash stands in the column `parent`."""
        target = node.real
        if node in self.changes:
            yield node.start, node.end, self.changes[node]
        elif not target.anchor:
            yield from self._changed_in(node, parent, anchors)
        else:
            name, known = anchors.choose(target.anchor, self.value(target))
            if known:
                yield node.mark, node.end, f"*{name}"
            elif node is target:
                yield node.mark, node.mark + 1 + len(node.anchor), f"&{name}"
                yield from self._changed_in(node, parent, anchors)
            else:
                yield node.mark, node.end, f"&{name}" + self._copy(target, parent + 2, anchors)

    def _changed_in(
        self, node: Node, parent: int, anchors: Anchors
    ) -> Iterator[tuple[int, int, str]]:
        for key, value in node.pairs:
            yield from self._changed(value, self.tree.column(key.mark), anchors)
        for item in node.items:
            column = parent if node.flow else self.tree.column(self.tree.dash(item))
            yield from self._changed(item, column, anchors)

    def _copy(self, node: Node, column: int, anchors: Anchors) -> str:
        """A node's content to stand behind an anchor, its lines in the given column."""
        own = self.tree.column(node.start)
        changes = self._changed_in(node, own, anchors)
        if node.flow or node.kind == "scalar":
            return " " + self._with(node.start, node.end, changes)
        lines = self._with(self.tree.line_start(node.start), node.end, changes)
        return "\n" + shifted(lines, column - own)


def pair_of(text: str) -> "Piece":
    """The piece that `key: value` is."""
    source = Source(f"{text}\n")
    return source.pair(source.root, source.root.pairs[0][0].text)


def item_of(text: str) -> "Piece":
    """The piece that a list's item is, written without its dash."""
    source = Source(f"- {text}\n")
    return source.item(source.root.items[0])


@dataclass(frozen=True)
class Piece:
    """A pair or an item, its comments included."""

    source: Source
    node: Node
    begin: int
    end: int
    column: int
    blank_above: bool
    blank_below: bool

    def render(self, column: int, anchors: Anchors) -> str:
        """Whole lines, to stand in the given column."""
        indent = " " * self.source.tree.column(self.begin)
        text = indent + self.source.render(self, anchors).rstrip("\n") + "\n"
        return shifted(text, column - self.column)
