"""Stacks of real processes for the tests: Envoy, the processor, two simulated pools, free ports."""

from collections.abc import Iterator

import pytest

from tests.e2e.client import Gateway
from tests.gateways import MakeGateway, gateways


@pytest.fixture(scope="module")
def make_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeGateway]:
    """See `gateways`."""
    with gateways(tmp_path_factory) as make:
        yield make


@pytest.fixture(autouse=True)
def _only_shared_gateways_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test makes for itself stops when it ends: idle stacks take the others' time. (What its
    module shares is made before this.)"""
    if "make_gateway" not in request.fixturenames:
        yield
        return
    make: MakeGateway = request.getfixturevalue("make_gateway")
    with make.for_a_while():
        yield


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
