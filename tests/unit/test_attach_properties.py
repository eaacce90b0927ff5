"""`attach`, whatever the hand that wrote the file: order, braces, quotes, indentation, comments."""

import json
import random
import re
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from extproc.attach import AttachError, Options
from extproc.attach.tree import Tree
from tests.sampling import examples
from tests.unit.test_attach import BOTH, PLAIN, STYLES, WHOLE, attach, dump, load

# Shrinking a seed says nothing and takes minutes.
RELAXED = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    report_multiple_bugs=False,
)
RANDOM = st.integers(0, 2**32).map(random.Random)
ROUTES = (
    *("static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config"),
    *("route_config", "virtual_hosts", 0, "routes"),
)


class Indented(yaml.SafeDumper):
    """Lists two columns to the right of their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def shuffled(value: Any, chance: random.Random) -> Any:
    """Keys in any order."""
    if isinstance(value, dict):
        items = list(value.items())
        chance.shuffle(items)
        return {key: shuffled(child, chance) for key, child in items}
    if isinstance(value, list):
        return [shuffled(child, chance) for child in value]
    return value


def written(document: Any, chance: random.Random, **more: Any) -> str:
    return yaml.dump(
        shuffled(document, chance),
        Dumper=chance.choice([Indented, yaml.SafeDumper]),
        sort_keys=False,
        indent=chance.choice([2, 3, 4, 8]),
        **{"default_flow_style": chance.choice([True, False, None]), **more},
    )


@settings(RELAXED, max_examples=examples(4))
@given(RANDOM, st.sampled_from(["plain", "hosts", "flow", "indented"]))
def test_in_every_style_the_same_is_added(chance: random.Random, name: str) -> None:
    options = BOTH if name == "plain" else Options()
    plain = STYLES.get(name, PLAIN)
    text = written(
        load(plain),
        chance,
        width=chance.choice([20, 80, 10_000]),
        default_style=chance.choice([None, "'", '"']),
        explicit_start=chance.random() < 0.3,
        explicit_end=chance.random() < 0.3,
    )
    if chance.random() < 0.3:
        text = json.dumps(load(text), indent=chance.choice([None, 1, 4]))
    assume(load(text) == load(plain))  # PyYAML does not write every text as it was
    attached = attach(text, options).text
    assert load(attached) == load(attach(plain, options).text)
    assert attach(attached).text == attached


@settings(RELAXED, max_examples=examples(4))
@given(RANDOM)
def test_every_comment_is_still_there_in_order(chance: random.Random) -> None:
    lines: list[str] = []
    numbers = iter(range(10_000))
    style = chance.choice([False, None])
    for line in written(load(PLAIN), chance, width=10_000, default_flow_style=style).splitlines():
        while chance.random() < 0.25:
            indent = chance.choice([len(line) - len(line.lstrip()), chance.randrange(30)])
            lines.append(chance.choice(["", " " * indent + f"# c{next(numbers)}."]))
        lines.append(line + (f" # c{next(numbers)}." if chance.random() < 0.3 else ""))
    text = "\n".join(lines) + chance.choice(["", "\n", "\n\n", "\n# the end\n"])

    attached = attach(text, BOTH).text
    assert load(attached) == load(WHOLE)
    tree = Tree(text)
    (route,) = tree.root.seq(*ROUTES)
    inline = route.inline
    gone = text[route.start if inline else tree.dash(route) : tree.below(route.end, 0)]
    kept = [c for c in re.findall(r"# c\d+\.", text) if c not in re.findall(r"# c\d+\.", gone)]
    assert [c for c in re.findall(r"# c\d+\.", attached) if c in kept] == kept


@settings(RELAXED, max_examples=examples(6))
@given(RANDOM, st.sampled_from([PLAIN, WHOLE, *STYLES.values()]))
def test_a_broken_file_is_refused_or_completed_and_nothing_else(
    chance: random.Random, text: str
) -> None:
    document = load(dump(load(text)))
    at = document
    while True:
        key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not at[key] or not isinstance(at[key], dict | list) or chance.random() < 0.1:
            break
        at = at[key]
    at[key] = chance.choice([None, {}, [], "x", 5, {"a": 1}, ["b"]])
    try:
        attached = attach(written(document, chance), Options()).text
    except AttachError as refused:
        assert "not YAML" not in str(refused)
    else:
        assert attach(attached).text == attached


def test_both_parsers_of_pyyaml_set_the_same_marks() -> None:
    texts = [PLAIN, WHOLE, *STYLES.values(), "ä: 𝟛 # ö\nb: |\n  x\n\n\n# c\nd: |+\n  y\n\n"]
    for text in [*texts, *(Path(__file__).parents[2] / "envoy").glob("*.yaml")]:
        source = text if isinstance(text, str) else text.read_text()
        ours, fast = (
            [
                (type(event), event.start_mark.index, event.end_mark.index)
                for event in yaml.parse(source, Loader=loader)
            ]
            for loader in (yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        )
        assert ours == fast
