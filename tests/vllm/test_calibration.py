"""The promise of a calibration, against real vLLM: a simulator that was calibrated on a server is
as fast as that server, within a quarter, with one stream and with eight.
"""

from pathlib import Path
from statistics import median

import pytest

from serving import calibrate
from serving.engine import StepTime
from serving.profile import load, save
from serving.sim import SimSettings, running
from tests.vllm.servers import Server

WITHIN = 0.25
ROUNDS = 5
# On a shared machine the real server's own speed changes by more than WITHIN from one minute to the
# next (seen: 16 ms a token, then 23). A model that is wrong is wrong each time.
TRIES = 3


async def _ratios(url: str, model: str, step_time: StepTime, streams: int) -> tuple[float, float]:
    """Simulated by real: time per token, tokens/s."""
    real: list[tuple[float, float]] = []
    simulated: list[tuple[float, float]] = []
    settings = SimSettings(port=0, models=[model], step_time=step_time)
    async with running(settings) as port:
        # In turns, so that what else the machine does hits both.
        for _ in range(ROUNDS):
            for base, measured in ((url, real), (f"http://127.0.0.1:{port}", simulated)):
                measured.append(
                    await calibrate.measure(base, streams, model=model, tokens=32, rounds=1)
                )
    tpot, throughput = (
        median(one[index] for one in simulated) / median(one[index] for one in real)
        for index in (0, 1)
    )
    return tpot, throughput


async def test_a_calibrated_simulator_is_as_fast_as_the_real_server(
    large: Server, tmp_path: Path
) -> None:
    seen: list[dict[int, tuple[float, float]]] = []
    for number in range(TRIES):
        async with calibrate.Server(large.url, model=large.model) as server:
            fitted = await calibrate.calibrate(server, tokens=32)
        profile = tmp_path / f"{number}.json"
        save(profile, fitted.step_time, {})
        seen.append(
            {
                streams: await _ratios(large.url, large.model, load(profile), streams)
                for streams in (1, 8)
            }
        )
        if all(abs(ratio - 1) <= WITHIN for ratios in seen[-1].values() for ratio in ratios):
            assert median(abs(fitted.error(point)) for point in fitted.points) < WITHIN
            return
    pytest.fail(f"simulated / real by streams, (time per token, tokens/s), each try: {seen}")
