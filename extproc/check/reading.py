"""Envoy's YAML, read by Envoy's own message types as far as it can be read.

A check reads files that are wrong, so nothing here raises for what a document holds: what cannot be
read counts as unset and is remembered. envoy-data-plane takes half a second to import, so it is
imported inside functions only, and never by the processor.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

from extproc.config.tree import items, mapping

if TYPE_CHECKING:
    import betterproto2
    from envoy_data_plane.envoy.type.matcher import v3 as matcher_v3

    M = TypeVar("M", bound=betterproto2.Message)

Node = Mapping[str, object]

_MOST_NODES = 200_000
_DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the document: its path, and the name of what stands there.

    A path that ends in `..` has a middle part left out, of which there is only one.
    """

    path: str
    name: str = ""

    def __str__(self) -> str:
        path = self.path.rstrip(".")
        return f"{path} ({self.name})" if self.name else path

    def at(self, below: str) -> Spot:
        """A field of what stands here."""
        return Spot(f"{self.path}.{below}", self.name)

    def item(self, below: str, name: object = "") -> Spot:
        """Something with a name of its own in it."""
        return Spot(f"{self.path}.{below}", name if isinstance(name, str) else "")


@dataclass(frozen=True, slots=True)
class Unread:
    """A field whose value Envoy's type does not take, or (`unknown`) that has no such field."""

    spot: Spot
    why: str
    unknown: bool


@dataclass(slots=True)
class Reader:
    """Reads messages and remembers what it could not read."""

    unread: list[Unread] = field(default_factory=list["Unread"])

    def message(self, kind: type[M], raw: object, spot: Spot, without: Collection[str] = ()) -> M:
        """`raw` as a message of Envoy's; fields in `without` and extensions (an Any with its
        `@type`) are left to be read where they stand."""
        if not isinstance(raw, Mapping):
            if raw is not None:
                self.unread.append(Unread(spot, f"is no {kind.__name__}", unknown=False))
            return kind()
        fields: dict[str, object] = {}
        for name, value in named(cast(object, raw)):
            if name in without or name == "@type" or is_extension(value):
                continue
            plain = _without_extensions(value)
            try:
                kind.from_dict({name: plain})
            except Exception as error:  # betterproto2 raises whatever the value makes it raise
                unknown = isinstance(error, KeyError) and "Unknown field" in str(error)
                why = _why(error) if unknown else f"{_shown(value)} does not fit here"
                self.unread.append(Unread(spot.at(name), why, unknown))
                if not unknown:
                    continue
            fields[name] = plain
        try:
            return kind.from_dict(fields, ignore_unknown_fields=True)
        except Exception as error:  # two fields that exclude each other
            self.unread.append(Unread(spot, _why(error), unknown=False))
            return kind()


def _why(error: Exception) -> str:
    words = str(error.args[0] if error.args else error).split()
    return " ".join(words)[:200].rstrip(".") or type(error).__name__


def _shown(value: object) -> str:
    return "something in it" if isinstance(value, Mapping | list) else repr(value)[:80]


def is_extension(value: object) -> bool:
    return isinstance(value, Mapping) and "@type" in value


def _without_extensions(value: object) -> object:
    if isinstance(value, Mapping):
        pairs = named(cast(object, value))
        return {k: _without_extensions(v) for k, v in pairs if not is_extension(v)}
    if isinstance(value, list):
        return [_without_extensions(v) for v in items(cast(object, value)) if not is_extension(v)]
    return value


# --- plain YAML, of which nothing is certain ----------------------------------------------------


def named(value: object) -> Iterator[tuple[str, object]]:
    """The pairs of a mapping whose keys are text."""
    for key, child in mapping(value).items():
        if isinstance(cast(object, key), str):
            yield key, child


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def texts(value: object) -> Iterator[str]:
    """Every text in it, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, child in named(cast(object, value)):
            yield key
            yield from texts(child)
    elif isinstance(value, list):
        for child in items(cast(object, value)):
            yield from texts(child)


def is_tree(document: object) -> bool:
    """Whether it can be walked: YAML's anchors can make loops, and trees that double and double."""
    todo = [(document, 0)]
    for _ in range(_MOST_NODES):
        if not todo:
            return True
        value, depth = todo.pop()
        if depth > _DEEPEST:
            return False
        if isinstance(value, Mapping):
            todo += [(child, depth + 1) for child in mapping(cast(object, value)).values()]
        elif isinstance(value, list):
            todo += [(child, depth + 1) for child in items(cast(object, value))]
    return False


# --- Envoy's matchers ---------------------------------------------------------------------------


def matches(matcher: matcher_v3.StringMatcher | None, value: str) -> bool:
    """Whether an Envoy StringMatcher matches; False where only Envoy can say (`custom`)."""
    if matcher is None:
        return False
    if matcher.safe_regex is not None:
        return regex_matches(matcher.safe_regex.regex, value)
    fold = str.lower if matcher.ignore_case else str
    value = fold(value)
    if matcher.exact is not None:
        return value == fold(matcher.exact)
    if matcher.prefix is not None:
        return value.startswith(fold(matcher.prefix))
    if matcher.suffix is not None:
        return value.endswith(fold(matcher.suffix))
    return matcher.contains is not None and fold(matcher.contains) in value


def regex_matches(regex: str, value: str) -> bool:
    """Envoy's regular expressions are RE2's and match the whole; Python's are near enough here."""
    try:
        return re.fullmatch(regex, value) is not None
    except (re.error, RecursionError, OverflowError):
        return False
