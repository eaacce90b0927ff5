"""Running gateways for tests: Envoy, the processor, and pools, on free ports.

The pools are simulated, or real servers that somebody else owns.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from extproc import config
from extproc.up import Options, Stack
from tests.e2e.client import Gateway

REFERENCE = Path(__file__).parents[1] / "envoy" / "envoy.yaml"

# Fast simulators: 5 ms a token, so that a test takes long only if it says so.
FAST = ("--prefill-ms", "10", "--decode-ms", "5")


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


class MakeGateway:
    """`make(policy={...}, edit=f, sim_args={...})`: a running stack from the reference config, its
    policy changed by `policy` (merged) and the whole document by `edit`; the pools are simulated
    unless `backends` gives their URLs."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._stacks: list[Stack] = []

    def __call__(
        self,
        policy: dict[str, Any] | None = None,
        edit: Callable[[Any], None] = lambda document: None,
        sim_args: dict[str, tuple[str, ...]] | None = None,
        backends: dict[str, tuple[str, ...]] | None = None,
    ) -> Gateway:
        document: Any = config.read_yaml(REFERENCE)
        _merge(document["node"]["metadata"]["forebay"], policy or {})
        edit(document)
        path = self._folders.mktemp("config") / "envoy.yaml"
        path.write_text(json.dumps(document))  # JSON is YAML, and quick to write and read
        given = sim_args or {}
        stack = Stack(
            Options(
                config=path,
                port=0,
                envoy_admin_port=0,
                admin_port=0,
                sim_args={pool: (*FAST, *given.get(pool, ())) for pool in ("small", "large")},
                backends=backends or {},
                concurrency=1,
            ),
            say=lambda line: None,
        )
        self._stacks.append(stack)
        stack.start()
        return Gateway(stack)

    @contextmanager
    def for_a_while(self) -> Iterator[None]:
        """What is made in this block stops at its end."""
        before = len(self._stacks)
        try:
            yield
        finally:
            while len(self._stacks) > before:
                self._stacks.pop().stop()


@contextmanager
def gateways(folders: pytest.TempPathFactory) -> Iterator[MakeGateway]:
    """Makes running gateways; all stop at the end."""
    make = MakeGateway(folders)
    with make.for_a_while():
        yield make
