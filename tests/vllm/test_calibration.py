"""The promise of a calibration, against real vLLM: a simulator that was calibrated on a server is
as fast as that server, within a quarter, with one stream and with eight.

FOREBAY_VLLM_PYTHON names a Python that has vLLM installed; `vllm_url` and `vllm_model` are one
server of it.
"""

import asyncio
import os
import statistics
from pathlib import Path

import pytest

from serving.calibrate import Fit, Server, calibrate, measure
from serving.profile import load, save
from serving.sim import SimSettings, running

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("FOREBAY_VLLM_PYTHON"),
        reason="needs vLLM: set FOREBAY_VLLM_PYTHON to a Python that has it",
    ),
    pytest.mark.timeout(600),
]

WITHIN = 0.25
ROUNDS = 5


@pytest.fixture(scope="module")
def fitted(vllm_url: str, vllm_model: str) -> Fit:
    async def measured() -> Fit:
        async with Server(vllm_url, model=vllm_model) as server:
            return await calibrate(server, tokens=32)

    return asyncio.run(measured())


@pytest.fixture(scope="module")
def profile(fitted: Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    save(path, fitted.step_time, {})
    return path


@pytest.mark.parametrize("streams", [1, 8])
async def test_a_calibrated_simulator_is_as_fast_as_the_real_server(
    vllm_url: str, vllm_model: str, profile: Path, streams: int
) -> None:
    settings = SimSettings(port=0, models=[vllm_model], step_time=load(profile))
    real: list[tuple[float, float]] = []
    simulated: list[tuple[float, float]] = []
    async with running(settings) as port:
        # In turns, so that what else the machine does hits both.
        for _ in range(ROUNDS):
            for url, measured in ((vllm_url, real), (f"http://127.0.0.1:{port}", simulated)):
                measured.append(await measure(url, streams, model=vllm_model, tokens=32, rounds=1))
    for index, name in enumerate(("seconds per token", "tokens/s")):
        expected, got = (
            statistics.median(one[index] for one in measured) for measured in (real, simulated)
        )
        assert got == pytest.approx(expected, rel=WITHIN), f"{name}: {real} {simulated}"


def test_the_fit_is_close_to_most_of_what_was_measured(fitted: Fit) -> None:
    errors = sorted(abs(fitted.error(point)) for point in fitted.points)
    assert statistics.median(errors) < WITHIN
