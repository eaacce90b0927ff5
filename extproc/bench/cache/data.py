"""The texts of `forebay bench cache`: found in folders, read, and what is missing said. Never makes
up a line, and never leaves one out unless it is asked to."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from extproc.bench.lab import BenchError
from extproc.cache.semantic.stateful_model import shipped

OWN = Path(__file__).parents[3] / "tests" / "unit" / "data"
"""In a checkout of Forebay; not in an installed one."""


class Pair(NamedTuple):
    """Two questions, and whether a person says that they ask the same."""

    kind: str
    stored: str
    asked: str
    same: bool


class PairFile(NamedTuple):
    name: str
    pairs: list[Pair]
    has_bar: bool
    """Of semantic-pairs*, as the project's goal says."""


class Stateful(NamedTuple):
    text: str
    stateful: bool


class StatefulFile(NamedTuple):
    name: str
    texts: list[Stateful]
    trained_on: bool


class Data(NamedTuple):
    pairs: list[PairFile]
    stateful: list[StatefulFile]
    statements: list[tuple[str, str]] | None
    """The same statement in two wordings, of which the first is stored."""
    skipped: dict[str, str]
    """What is not there, and where it was looked for."""

    def texts(self) -> Iterator[str]:
        for file in self.pairs:
            for pair in file.pairs:
                yield from (pair.stored, pair.asked)
        yield from (each.text for file in self.stateful for each in file.texts)
        for statement in self.statements or ():
            yield from statement


def read(folder: Path, most_lines: int | None) -> Data:
    """What is in `folder`, and what else Forebay's own checkout has. `most_lines`: of each file."""
    return _Reader([folder, OWN], most_lines).read()


class _Reader:
    def __init__(self, folders: list[Path], most_lines: int | None) -> None:
        self._folders = folders
        self._most = most_lines
        self._skipped: dict[str, str] = {}

    def read(self) -> Data:
        pairs = [
            PairFile(path.name, [_pair(row) for row in self._rows(path)], has_bar)
            for pattern, has_bar in (
                ("semantic-pairs*.jsonl", True),
                ("semantic-fresh.jsonl", False),
                ("qqp-similar-dev.jsonl", False),
            )
            for path in self._find(pattern)
        ]
        trained_on = {f"stateful-{name}.jsonl" for name in shipped().texts}
        stateful = [
            StatefulFile(
                path.name,
                [Stateful(row["text"], row["stateful"]) for row in self._rows(path)],
                path.name in trained_on,
            )
            for path in self._find("stateful-*.jsonl")
        ]
        statements = None
        for path in self._find("gptcache-mock.json"):
            statements = [(row["origin"], row["similar"]) for row in self._rows(path)]
        return Data(pairs, stateful, statements, self._skipped)

    def _find(self, pattern: str) -> list[Path]:
        """By name; where two folders have one, that of the first."""
        found: dict[str, Path] = {}
        for folder in reversed(self._folders):
            found |= {path.name: path for path in folder.glob(pattern)}
        if not found:
            looked = ", ".join(str(folder) for folder in self._folders)
            self._skipped[pattern] = f"there is none in {looked}"
        return sorted(found.values(), key=lambda path: path.stem)

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        try:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".json":
                return list(islice(json.loads(text), self._most))
            return [json.loads(line) for line in islice(text.splitlines(), self._most)]
        except (OSError, ValueError) as error:
            raise BenchError(f"{path}: cannot be read: {error}") from error


def _pair(row: dict[str, Any]) -> Pair:
    """Also of a file that only has wordings of the same: QQP's duplicates."""
    if "origin" in row:
        return Pair("duplicate", row["origin"], row["similar"], True)
    return Pair(row["kind"], row["cached"], row["query"], row["same"])
