"""In which line of a YAML text something stands, by its path. Knows nothing of what it means, and
must never raise for what a text holds."""

import re
from collections import deque
from collections.abc import Iterator

import yaml

_INDEX = re.compile(r"\[(\d+)\]")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Lines:
    """Of one text. A text that is no YAML has none."""

    def __init__(self, text: str) -> None:
        try:
            self._root = yaml.compose(text, Loader=_LOADER)
        except (yaml.YAMLError, ValueError, RecursionError):
            self._root = None

    def of(self, path: str) -> int | None:
        """The line, from 1, of `a.b[2].c`; of the block around it where the file leaves it out;
        None where it would be at the top. Three dots stand for a middle part that is left out."""
        node, line = self._root, None
        rest = path
        while node is not None and rest:
            if rest.startswith("..."):
                rest = rest[3:]
                found = next((hit for below in _all(node) if (hit := _step(below, rest))), None)
            else:
                rest = rest.removeprefix(".")
                found = _step(node, rest)
            if found is None:
                break
            node, line, rest = found
        return line

    def said_twice(self) -> Iterator[tuple[str, int, int]]:
        """Keys that a block has more than once: the path, and the lines of the last two."""
        waiting, seen = deque([("", self._root)]), set[int]()
        while waiting:
            path, node = waiting.popleft()
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                waiting += [(f"{path}[{n}]", item) for n, item in enumerate(node.value)]
            if not isinstance(node, yaml.MappingNode):
                continue
            at, twice = dict[str, int](), dict[str, tuple[int, int]]()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    line, here = key.start_mark.line + 1, f"{path}.{key.value}".removeprefix(".")
                    if key.value in at:
                        twice[here] = (at[key.value], line)
                    at[key.value] = line
                    waiting.append((here, value))
            yield from ((here, *both) for here, both in twice.items())


def _step(node: yaml.Node, rest: str) -> tuple[yaml.Node, int, str] | None:
    """What the path's next part leads to, its line, and the rest of the path."""
    if isinstance(node, yaml.SequenceNode) and (index := _INDEX.match(rest)):
        if int(index[1]) < len(node.value):
            item = node.value[int(index[1])]
            return item, item.start_mark.line + 1, rest[index.end() :]
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    # A key may have dots in it: the longest that fits is meant.
    fitting = [
        (str(key.value), key, value)
        for key, value in node.value
        if rest.startswith(str(key.value))
        and key.value
        and rest[len(str(key.value)) :][:1] in ("", ".", "[")
    ]
    if not fitting:
        return None
    name, key, value = max(fitting, key=lambda pair: len(pair[0]))
    return value, key.start_mark.line + 1, rest[len(name) :]


def _all(node: yaml.Node) -> Iterator[yaml.Node]:
    """It and every node in it, the nearest first; each once, whatever loops there are."""
    waiting, seen = deque([node]), {id(node)}
    while waiting:
        node = waiting.popleft()
        yield node
        children = list[yaml.Node]()
        if isinstance(node, yaml.MappingNode):
            children = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        for child in children:
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
