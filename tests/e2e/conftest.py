"""Stacks of real processes for the tests: Envoy, the processor, two simulated pools, free ports."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.up import Options, Stack
from tests.e2e.client import Gateway

REFERENCE = Path(__file__).parents[2] / "envoy" / "envoy.yaml"

# Fast simulators: 5 ms a token, so that a test takes long only if it says so.
FAST = ("--prefill-ms", "10", "--decode-ms", "5")

MakeGateway = Callable[..., Gateway]


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


@pytest.fixture(scope="module")
def make_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeGateway]:
    """`make_gateway(policy={...}, edit=f, sim_args={...})`: a running stack from the reference
    config, its policy changed by `policy` (merged) and the whole document by `edit`; the pools are
    simulated unless `backends` gives their URLs."""
    stacks: list[Stack] = []

    def make(
        policy: dict[str, Any] | None = None,
        edit: Callable[[Any], None] = lambda document: None,
        sim_args: dict[str, tuple[str, ...]] | None = None,
        backends: dict[str, tuple[str, ...]] | None = None,
    ) -> Gateway:
        document = copy.deepcopy(yaml.safe_load(REFERENCE.read_text()))
        _merge(document["node"]["metadata"]["forebay"], policy or {})
        edit(document)
        path = tmp_path_factory.mktemp("config") / "envoy.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
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
        stacks.append(stack)
        stack.start()
        return Gateway(stack)

    yield make
    for stack in stacks:
        stack.stop()


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """The reference config, one for each test module."""
    return make_gateway()


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Iterator[Gateway]:
    """The module's gateway with servers that behave and remember nothing; after the test no slot
    and no place in a queue may still be taken."""
    shared_gateway.reset()
    yield shared_gateway
    shared_gateway.set_faults("small", {})
    shared_gateway.set_faults("large", {})
    shared_gateway.wait_until_idle()
