"""Two real vLLM servers behind a real gateway. Without FOREBAY_TEST_VLLM all of it is skipped."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.client import Gateway
from tests.gateways import MakeGateway, gateways
from tests.vllm.install import Places, parts, places
from tests.vllm.servers import MAX_NUM_SEQS, Fleet, Server

_WANTED = bool(os.environ.get("FOREBAY_TEST_VLLM"))
_TIMEOUT_S = 400  # the test that comes first waits for the servers
_FOLDER = Path(__file__).parent

_fleet = pytest.StashKey[Fleet]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))
            if not _WANTED:
                item.add_marker(pytest.mark.skip(reason="needs real vLLM: run `make test-vllm`"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failure shows the end of each server's log."""
    report = yield
    if report.failed and (fleet := item.config.stash.get(_fleet, None)):
        for server in fleet.started():
            report.sections.append((f"vLLM {server.name}: {server.log}", server.last_words()))
    return report


@pytest.fixture(scope="session")
def vllm_places() -> Places:
    """What the installer has made; a missing part is a failure, not a skip."""
    at = places()
    missing = [part.name for part in parts(at) if not part.is_whole()]
    if missing or not at.python.exists():
        pytest.fail(f"not installed in {at.folder}: {missing or at.python}; run `make test-vllm`")
    return at


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest, vllm_places: Places) -> Iterator[Fleet]:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    terminal = request.config.pluginmanager.getplugin("terminalreporter")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.ensure_newline()
            terminal.write_line(f"  {line}")

    request.config.stash[_fleet] = fleet = Fleet(vllm_places, say)
    try:
        yield fleet
    finally:
        fleet.end()


@pytest.fixture
def small(fleet: Fleet) -> Server:
    """The real model, alive and idle."""
    return fleet.living("small", "large")[0]


@pytest.fixture
def large(fleet: Fleet) -> Server:
    """The fast one that talks gibberish, alive and idle."""
    return fleet.living("small", "large")[1]


@pytest.fixture
def embedder(fleet: Fleet) -> Server:
    """all-MiniLM-L6-v2 behind /v1/embeddings, alive and idle."""
    return fleet.living("embedder")[0]


@pytest.fixture(scope="module")
def make_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeGateway]:
    """See `gateways`."""
    with gateways(tmp_path_factory) as make:
        yield make


@pytest.fixture(scope="module")
def shared_gateway(fleet: Fleet, make_gateway: MakeGateway) -> Gateway:
    """In front of both servers, with as many slots as these run at once."""
    small, large = fleet.living("small", "large")
    return make_gateway(
        backends={"small": (small.url,), "large": (large.url,)},
        policy={
            "pools": {pool: {"slots": MAX_NUM_SEQS} for pool in ("small", "large")},
            "admission": {"high_water": 64},
        },
    )


@pytest.fixture
def gateway(shared_gateway: Gateway, small: Server, large: Server) -> Iterator[Gateway]:
    """The module's gateway; after the test no slot and no place in a queue may still be taken,
    here or in a server."""
    yield shared_gateway
    shared_gateway.wait_until_idle()
    small.wait_until_idle()
    large.wait_until_idle()
