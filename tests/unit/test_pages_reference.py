"""The configuration reference names every key of the policy, and nothing that is none."""

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from extproc import config
from tests.unit.test_pages import ROOT

_PAGE = (ROOT / "envoy" / "README.md").read_text()
_NAMED = {"pools": "NAME", "tenants": "NAME", "paths": "PATH"}
"""What the reference writes for the keys of a map."""
_SAME = {
    "limits.store.redis.": "cache.store.redis.",
    "routing.learning.judge.price.": "pools.NAME.price.",
}
"""Blocks that are described elsewhere, since they have the same keys."""


def _models(annotation: Any) -> Iterator[tuple[type[BaseModel], bool]]:
    """Blocks that a key may hold; True: by names of the operator's own."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, False
    is_map = typing.get_origin(annotation) in (dict, Mapping)
    for argument in typing.get_args(annotation):
        yield from ((model, is_map or many) for model, many in _models(argument))


def _keys(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        path = (*at, field.alias or name)
        blocks = list(_models(field.annotation))
        if not blocks:
            yield path
        for block, many in blocks:
            yield from _keys(block, (*path, _NAMED[name]) if many else path)


KEYS = [".".join(path) for path in _keys(config.Config)]


def _rows() -> Iterator[tuple[list[str], str]]:
    """Each row's keys in full, and all that it says. Of several keys the first is whole, the others
    stand beside it."""
    under, in_table = "", False
    for line in _PAGE.splitlines():
        if header := re.match(r"\| key(?: of `([\w.]+)`)? \| default ", line):
            under, in_table = f"{header[1]}." if header[1] else "", True
        elif not line.startswith("|"):
            in_table = False
        elif in_table and (keys := re.findall(r"`([^`]+)`", line.split("|")[1])):
            first = under + keys[0]
            beside = first.removesuffix(first.rpartition(".")[2])
            yield [first, *(beside + key for key in keys[1:])], line


ROWS = list(_rows())


def _under(block: str) -> set[str]:
    return {key.removeprefix(block) for key in KEYS if key.startswith(block)}


def _is_named(key: str) -> bool:
    """By a row of its own, or as a word in the row of a block that it stands in."""
    for keys, line in ROWS:
        for row in keys:
            if row == key or row.startswith(f"{key}."):
                return True
            if key.startswith(f"{row}.") and re.search(rf"\b{key.rpartition('.')[2]}\b", line):
                return True
    return False


def test_every_key_of_the_policy_is_in_the_reference() -> None:
    for block, other in _SAME.items():
        assert _under(block) == _under(other), "described once for both"
    keys = [key for key in KEYS if not key.startswith(tuple(_SAME))]
    assert [key for key in keys if not _is_named(key)] == []


def test_every_key_of_the_reference_is_one_of_the_policy() -> None:
    def is_one(key: str) -> bool:
        return any(f"{real}.".startswith(f"{key}.") or key.startswith(f"{real}.") for real in KEYS)

    named = [key for keys, _ in ROWS for key in keys]
    assert len(named) > 80
    assert [key for key in named if not is_one(key)] == []


def test_a_key_that_is_missing_would_be_found() -> None:
    assert not _is_named("admission.patience")
    assert not _is_named("tenants.NAME.budget.euro")
