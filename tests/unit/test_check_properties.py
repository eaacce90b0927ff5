"""Whatever a file holds, the check answers: it never raises, and what it says can be shown."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.check import Finding, as_json, as_text, check
from tests.sampling import THOROUGH, examples
from tests.unit.test_check_kit import sound

Path = tuple[str | int, ...]


def paths(node: Any, here: Path = ()) -> Iterator[Path]:
    children = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, child in children:
        yield (*here, key)
        yield from paths(child, (*here, key))


DOCUMENT = sound().data
# Shallow nodes are few, and their loss hides the rest: deep ones are drawn as often.
PATHS = sorted(paths(DOCUMENT), key=len)

SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0s", "15s", "-1s", "1e99s", "99999999999999999999s", "*", "small", "("])
    | st.sampled_from([10**400, -(2**63), b"bytes"])
)
NONSENSE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["@type", "name", "x"]) | st.integers(), inner, max_size=2
        )
    ),
    max_leaves=4,
)
DELETE = object()


def broken(changes: list[tuple[Path, Any]]) -> Any:
    document = copy.deepcopy(DOCUMENT)
    for path, value in changes:
        node = document
        for key in path[:-1]:
            try:
                node = node[key]
            except (KeyError, IndexError, TypeError):
                node = None
                break
        try:
            if value is DELETE:
                del node[path[-1]]
            else:
                node[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
    return document


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.just(DELETE) | NONSENSE), min_size=1, max_size=4)
)
def test_a_document_with_parts_lost_or_replaced_is_judged(changes: list[tuple[Path, Any]]) -> None:
    shown(check(broken(changes)))


VALUES = [DELETE, None, [], {}, "x", 0, [None], {"a": 1}, ["x"], True]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_each_part_lost_or_replaced_is_judged(number: int) -> None:
    """Each value at every 60th place, at others for each; in `make soak` at all."""
    for path in PATHS if THOROUGH else PATHS[number :: 6 * len(VALUES)]:
        shown(check(broken([(path, VALUES[number])])))


@given(NONSENSE)
def test_any_document_is_judged(document: Any) -> None:
    findings = check(document)
    shown(findings)
    assert any(f.severity == "error" for f in findings)


def test_a_loop_of_anchors_and_copies_without_end_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    many: Any = "x"
    for _ in range(30):
        many = [many, many]
    for document in (loop, {"static_resources": loop}, {"forebay": many}):
        assert [f.rule for f in check(document)] == ["not-a-tree"]


def shown(findings: list[Finding]) -> None:
    for finding in findings:
        assert finding.rule
        assert finding.place
        assert finding.reason
        assert finding.mend
    assert as_text(findings)
    assert len(json.loads(as_json(findings))["findings"]) == len(findings)
