"""What the Markdown pages show can be typed: policies load, commands and their options are there.

Nothing is run here. A page's examples are its indented blocks, taken apart at blank lines.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from extproc import cli, config
from tests.unit.test_pages import PAGES, ROOT

_POOLS = {
    "small": {"model": "small-7b", "slots": 32, "price": {"input": 0.1, "output": 0.4}},
    "large": {"model": "large-70b", "slots": 16, "price": {"input": 0.9, "output": 3.6}},
}
"""What an example that names pools without describing them takes for granted."""


def _blocks(page: Path) -> Iterator[str]:
    fenced, block = False, ""
    for line in [*(ROOT / page).read_text().splitlines(), ""]:
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("    "):
            block += line[4:] + "\n"
        elif block:
            yield block
            block = ""


def _policies() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for page in PAGES:
        for block in _blocks(page):
            if block.split(":")[0] in config.Config.model_fields:
                yield f"{page}: {block.splitlines()[0]}", yaml.safe_load(block)


def _commands() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for block in _blocks(page):
            for line in block.splitlines():
                if line.startswith("forebay ") and "..." not in line:
                    words = shlex.split(line, comments=True)
                    yield f"{page}: {shlex.join(words)}", words[1:]


POLICIES = list(_policies())
COMMANDS = list(_commands())


def _load(example: Mapping[str, Any]) -> config.Config:
    pools = {**_POOLS, **example.get("pools", {})}
    return config.from_document({"forebay": {**example, "pools": pools}}).config


@pytest.mark.parametrize(("where", "example"), POLICIES, ids=[where for where, _ in POLICIES])
def test_a_policy_that_is_shown_is_taken(where: str, example: Mapping[str, Any]) -> None:
    assert _load(example), where


def test_a_wrong_policy_would_not_be() -> None:
    with pytest.raises(config.ConfigError, match=r"forebay\.admission"):
        _load({"admission": {"max_wait": "10 parsecs"}})


@pytest.mark.parametrize("words", [words for _, words in COMMANDS], ids=[it for it, _ in COMMANDS])
def test_a_command_that_is_shown_is_there_with_its_options(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "checkout"
    here.mkdir()
    monkeypatch.chdir(here)
    for before, name in pairwise(words):
        if before == "--data":
            Path(name).mkdir(parents=True)
        elif name.endswith((".json", ".yaml")):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).touch()
    _parse(words)


def test_a_wrong_command_or_option_would_be_found() -> None:
    with pytest.raises(LookupError, match="thaw"):
        _parse(["cache", "thaw"])
    with pytest.raises(Exception, match="--coverage"):
        _parse(["check", "envoy.yaml", "--coverage"])


def _parse(words: list[str]) -> None:
    """By our own command line; it raises where it would refuse."""
    command: Any = typer.main.get_command(cli.app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        raise LookupError(f"there is no command {words[0]}")
    command.make_context(command.name, list(words))


def test_make_targets_that_are_shown_are_there() -> None:
    shown: set[str] = set()
    for page in PAGES:
        for block in _blocks(page):
            shown |= set(re.findall(r"\bmake ([a-z-]+)(?= |\n)", block))
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    assert {"up", "test"} <= shown <= targets


def test_examples_are_still_found() -> None:
    assert len(POLICIES) > 8
    assert len(COMMANDS) > 25
