"""The user's text while pieces are put into it. Places are named by path, since every edit moves
the nodes; lines are counted as the user sees them, in the file as it was.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal

import yaml

from extproc.attach.errors import AttachError
from extproc.attach.source import Anchors, Piece, Source, shifted
from extproc.attach.tree import Node, Tree

Path = tuple[str | int, ...]


class Draft:
    def __init__(self, text: str, note: Callable[[str], None]) -> None:
        self.tree = Tree(text)
        self.unfolded: list[int] = []
        """Lines where braces or brackets were rewritten as lines."""
        self.quiet: set[str] = set()
        """Anchors of our own, of which nobody has to be told that they are shared."""
        self.moving: set[str] = set()
        """Anchors that may move to where they are used next, if what holds them is removed."""
        self._note = note
        self._lines = list(range(1, text.count("\n") + 2))
        """For each line, which one it was in the file, or by which it was put in."""

    @property
    def text(self) -> str:
        return self.tree.text

    def find(self, *path: str | int) -> Node | None:
        """What stands there, aliases followed."""
        return self.tree.root.get(*path)

    def get(self, *path: str | int) -> Node:
        found = self.find(*path)
        assert found, path
        return found

    def where(self, *path: str | int) -> str:
        """The place as a person finds it: its line in the file as it was, and its name."""
        last = max(n for n, part in enumerate(path) if isinstance(part, str))
        name = str(path[last]) + "".join(f"[{index}]" for index in path[last + 1 :])
        return f"line {self._line(self._key(path).mark)} ({name})"

    def place(self, node: Node) -> str:
        return f"line {self._line(node.mark)}"

    def _line(self, at: int) -> int:
        return self._lines[self.text.count("\n", 0, at)]

    # --- putting in ----------------------------------------------------------------------------

    def add_pair(self, path: Path, piece: Piece, behind: Sequence[str] = ()) -> None:
        """A key into the mapping there, behind the last of the keys `behind` that it has, or at
        its end."""
        node = self.open(path, "map")
        if node.empty:
            self._fill(path, piece, 2)
            return
        present = [pair for key in behind if (pair := node.pair(key))] or node.pairs[-1:]
        column = self.tree.column(node.pairs[0][0].mark)
        self._insert(self.tree.below(present[-1][1].end, column), piece, column)

    def add_at_top(self, piece: Piece) -> None:
        """A key at the top of the file, below the comment with which the file begins."""
        key = self.open((), "map").pairs[0][0].mark
        lead = self.tree.lead(key)
        self._insert(lead if self.text[:lead].strip("- \n") else key, piece, 0)

    def add_item(
        self, path: Path, piece: Piece, index: int, *, below_comments: bool = False
    ) -> None:
        """An item into the sequence there, so that it has this index. Comments above the one that
        has it now stay with that one, or with `below_comments` stay above."""
        node = self.open(path, "seq")
        if node.empty:
            self._fill(path, piece, self._list_indent())
            return
        column = self.tree.column(self.tree.dash(node.items[0]))
        if index < len(node.items):
            dash = self.tree.dash(node.items[index])
            at = self.tree.line_start(dash) if below_comments else self.tree.lead(dash)
        else:
            at = self.tree.below(node.items[-1].end, column)
        self._insert(at, piece, column)

    def replace_scalar(self, path: Path, key: str, source: Source, mapping: Node) -> None:
        """Another value for a key of the mapping there: as `source` writes it in `mapping`."""
        said = mapping.pair(key)
        assert said
        text = source.tree.text[said[1].start : said[1].end].rstrip("\n")
        if "\n" in text:
            self.open(path, "map")
        here = self._physical((*path, key))
        column = self.tree.column(self._key((*path, key)).mark)
        first, line_end, rest = text.partition("\n")
        rest = shifted(rest, column - source.tree.column(said[0].mark))
        end = len(self.text[: here.end].rstrip("\n"))
        self._replace(here.start, end, first + line_end + rest)

    def remove_item(self, path: Path, index: int) -> None:
        """The lines of an item; comments above it stay."""
        item = self.open(path, "seq").items[index]
        dash = self.tree.dash(item)
        end = self.tree.below(item.end, self.tree.column(dash))
        if self._cut(dash, end, (*path, index)):
            return
        self.remove_item(path, index)  # its anchor has moved

    def remove_pair(self, path: Path, key: str) -> None:
        """The lines of a key of the mapping there, which has others; comments above it stay."""
        said = self.open(path, "map").pair(key)
        assert said
        mark = said[0].mark
        if not self._cut(mark, self.tree.below(said[1].end, self.tree.column(mark)), (*path, key)):
            self.remove_pair(path, key)

    def _cut(self, mark: int, end: int, path: Path) -> bool:
        """The lines from this mark on. False: not yet, an anchor in them was moved first."""
        for alias in self.tree.aliases:
            if alias.real.anchor and mark < alias.real.mark < end <= alias.mark:
                if alias.real.anchor in self.moving:
                    self._move_to(alias)
                    return False
                raise AttachError(
                    f"{self.where(*path)}: it is to be removed, and &{alias.real.anchor} in "
                    f"it is used in line {self._line(alias.mark)}. Move the anchor there, and run "
                    "this again."
                )
        self._replace(self.tree.line_start(mark), end, "")
        return True

    def _move_to(self, alias: Node) -> None:
        """What an alias stands for, with its anchor, in the place of the alias. Block style."""
        target = alias.real
        lines = self.text[self.tree.line_start(target.start) : target.end].rstrip()
        line = self.text[self.tree.line_start(alias.mark) : alias.mark]
        column = len(line) - len(line.lstrip(" -")) + 2
        lines = shifted(lines, column - self.tree.column(target.start))
        self._replace(alias.start, alias.end, f"&{target.anchor}\n{lines}")

    def _insert(self, at: int, piece: Piece, column: int) -> None:
        before, behind = self.text[:at], self.text[at:]
        new = piece.render(column, Anchors(self.tree, at))
        if before and not before.endswith("\n"):
            before = before + "\n"
            new = "\n" + new
        if piece.blank_above and not re.search(r"(^|\n|:[ \t]*)\n$", before):
            new = "\n" + new
        if piece.blank_below and behind and not behind.startswith("\n"):
            new += "\n"
        comments = _comments(behind) if _ends_in_block_text(new) else ""
        self._replace(at, at + len(comments), new + _outdented(comments, column))

    def _fill(self, path: Path, piece: Piece, indent: int) -> None:
        """In the place of null, {} or []."""
        node = self.get(*path)
        column = self._parent_column(path) + indent
        begin = len(self.text[: node.start].rstrip(" "))
        self._replace(begin, node.end, "")
        self._insert(self.tree.line_end(begin), piece, column)

    def _replace(self, start: int, end: int, new: str, lines: list[int] | None = None) -> None:
        """`lines`: those that the new lines were."""
        first, last = self.text.count("\n", 0, start), self.text.count("\n", 0, end)
        told = [self._lines[first]] * new.count("\n") + [self._lines[last]]
        self._lines[first : last + 1] = lines or told
        self.tree = Tree(self.text[:start] + new + self.text[end:])

    # --- making room ---------------------------------------------------------------------------

    def open(self, path: Path, kind: Literal["map", "seq"]) -> Node:
        """The mapping or sequence there, made so that lines can be put into it: its own and no
        alias, and in block style all the way down to it."""
        for length in range(len(path) + 1):
            above = path[:length]
            while True:
                node = self._physical(above)
                if node.kind == "alias":
                    self._write_out(above, node)
                elif node.flow and not node.empty:
                    self.unfolded.append(self._line(node.start))
                    self._unfold(above, node)
                else:
                    break
            self._tell_if_shared(above, node)
        node = self.get(*path)
        if node.kind != kind and not node.empty:
            what = {"map": "key: value", "seq": "a list"}[kind]
            raise AttachError(f"{self.where(*path)}: Envoy expects {what} here.")
        return node

    def _physical(self, path: Path) -> Node:
        """As `get`, but an alias is found as such."""
        if not path:
            return self.tree.root
        parent, last = self.get(*path[:-1]), path[-1]
        if isinstance(last, int):
            return parent.items[last]
        pair = parent.pair(last)
        assert pair, path
        return pair[1]

    def _key(self, path: Path) -> Node:
        """The key of a pair, or an item itself."""
        if not path or isinstance(path[-1], int):
            return self._physical(path)
        pair = self.get(*path[:-1]).pair(path[-1])
        assert pair, path
        return pair[0]

    def _parent_column(self, path: Path) -> int:
        """Of the key or the dash; of the whole document, so that two more is its column."""
        if not path:
            return -2
        key = self._key(path)
        return self.tree.column(self.tree.dash(key) if isinstance(path[-1], int) else key.mark)

    def _tell_if_shared(self, path: Path, node: Node) -> None:
        shared = any(alias.target is node for alias in self.tree.aliases)
        if shared and node.anchor not in self.quiet:
            self.quiet.add(node.anchor)
            self._note(
                f"{self.where(*path)}: what was added to &{node.anchor} also holds wherever "
                f"*{node.anchor} stands."
            )

    def _write_out(self, path: Path, alias: Node) -> None:
        """A copy in the place of an alias, so that the others who share it keep what they have."""
        self._note(f"{self.where(*path)}: an alias; written out, since it had to be extended.")
        target = alias.real
        if target.flow or target.kind == "scalar":
            self._replace(alias.start, alias.end, self.text[target.start : target.end])
            return
        lines = self.text[self.tree.line_start(target.start) : target.end]
        column = self._parent_column(path) + 2
        begin = len(self.text[: alias.start].rstrip(" "))
        new = "\n" + shifted(lines, column - self.tree.column(target.start))
        self._replace(begin, alias.end, new)

    def _unfold(self, path: Path, node: Node) -> None:
        """Braces or brackets as lines, one for each child; the children stay as they are."""
        lines, numbers, at = list[str](), list[int](), node.start

        def add(text: str, start: int) -> None:
            lines.append(_hanging(text))
            first = self.text.count("\n", 0, start)
            numbers.extend(self._lines[first : first + text.count("\n") + 1])

        def add_comments(start: int, end: int) -> None:
            """Between two nodes there are blanks, punctuation and comments."""
            for comment in re.finditer(r"#[^\n]*", self.text[start:end]):
                add(comment[0], start + comment.start())

        for child in node.pairs or [(item, item) for item in node.items]:
            add_comments(at, child[0].mark)
            value = self.text[child[1].mark : child[1].end]
            if node.kind == "map":
                add_comments(child[0].end, child[1].mark)
                value = f"{self.text[child[0].mark : child[0].end]}: {value}".rstrip()
            else:
                value = f"- {value}"
            add(value, child[1].mark)
            at = child[1].end
        add_comments(at, node.end)

        begin = len(self.text[: node.start].rstrip(" "))
        before = self.text[:begin]
        column = self._parent_column(path) + 2
        if before.endswith("-") and not lines[0].startswith("#") and path:
            column = self.tree.column(node.start)  # the first child beside the dash
            new = shifted("\n".join(lines), column).lstrip(" ")
            self._replace(node.start, node.end, new, numbers)
            return
        if node.kind == "seq" and path and not isinstance(path[-1], int):
            column += self._list_indent() - 2
        new = shifted("\n".join(lines), column)
        if before.endswith("\n") or not before:
            self._replace(begin, node.end, new, numbers)
        else:  # a comment behind it stays beside the key
            stop = len(self.text[: self.tree.line_end(node.end)].rstrip("\n"))
            numbers.insert(0, self._line(begin))
            self._replace(begin, stop, f"{self.text[node.end : stop]}\n{new}", numbers)

    def _list_indent(self) -> int:
        """How far this file indents a list under its key: 0 or 2, as a rule."""

        def first(node: Node) -> int | None:
            for key, value in node.pairs:
                if value.kind == "seq" and not value.flow:
                    return self.tree.column(value.start) - self.tree.column(key.mark)
            children = [value for _, value in node.pairs] + node.items
            return next((n for child in children if (n := first(child)) is not None), None)

        return first(self.tree.root) or 0


def _ends_in_block_text(piece: str) -> bool:
    """What is indented below such a text would become a part of it, comments too."""
    scalars = [token for token in yaml.scan(piece) if isinstance(token, yaml.ScalarToken)]
    return bool(scalars) and scalars[-1].style in ("|", ">")


def _comments(text: str) -> str:
    """The lines with which it begins that are blank or comments."""
    found = re.match(r"(?: *(?:#[^\n]*)?\n)*", text)
    assert found
    return found[0]


def _outdented(comments: str, column: int) -> str:
    """None of them deeper than this."""
    return re.sub(rf"(?m)^ {{{column + 1},}}#", " " * column + "#", comments)


def _hanging(text: str) -> str:
    """Its further lines indented by two more than its first."""
    first, *rest = text.split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    return "\n".join([first, *(shifted(line[margin:], 2) for line in rest)])
