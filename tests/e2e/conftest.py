"""Stacks of real processes for the tests: Envoy, the processor, two simulated pools, free ports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.client import Gateway
from tests.gateways import MakeGateway, gateways
from tests.redis_server import RedisServer, redis_server

# The files that take longest, in seconds on two cores: they begin first, so that none of them runs
# alone at the end (with --dist loadfile --no-loadscope-reorder).
LONG_S = {
    "test_bench": 75,
    "test_sse": 60,
    "test_lifecycle": 55,
    "test_endings": 50,
    "test_alerts": 50,
    "test_operation": 40,
    "test_backends": 40,
    "test_ttft": 35,
    "test_limits": 35,
    "test_overload": 28,
    "test_guard": 27,
    "test_costs": 26,
    "test_hosted": 25,
    "test_doctor": 25,
    "test_soak": 25,
    "test_identity": 22,
    "test_admission": 22,
    "test_budget_stop": 22,
    "test_limits_storm": 22,
    "test_numbers": 20,
    "test_bench_limits": 20,
    "test_one_flight": 20,
    "test_prefix_affinity": 20,
    "test_batch": 20,
    "test_cache": 20,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: -LONG_S.get(item.path.stem, 0) if item.path.parent == here else 0)


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
    for pool in shared_gateway.stack.config.backend_urls:
        shared_gateway.set_faults(pool, {})
    shared_gateway.wait_until_idle()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from redis_server(tmp_path_factory.mktemp("redis"))
