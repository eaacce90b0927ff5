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
