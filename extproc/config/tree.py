"""Parsed YAML of which nothing is known yet. Pure; never raises for what it is given."""

from collections.abc import Iterator, Mapping
from typing import Any, cast


def mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def dig(value: object, *keys: str) -> object:
    for key in keys:
        value = mapping(value).get(key)
    return value


def walk(value: object) -> Iterator[Mapping[str, Any]]:
    """Every mapping in a YAML document, outermost first."""
    if isinstance(value, Mapping):
        block = mapping(cast(object, value))
        yield block
        for child in block.values():
            yield from walk(child)
    else:
        for child in items(value):
            yield from walk(child)
