"""Three gateways with one Redis grant what a limit allows, no more and hardly less; also while that
is killed and started again. Shorter than `forebay bench limits` by itself."""

import pytest

from tests.e2e.test_bench import bench
from tests.redis_server import MISSING, binary

pytestmark = pytest.mark.skipif(binary() is None, reason=MISSING)


def test_gateways_that_share_a_redis_grant_a_limit_once() -> None:
    told = bench("limits", "--seconds", "6", "--away", "2")
    steady, away = told["turns"]
    for turn in (steady, away):
        assert turn["offered"] == 540
        assert turn["granted"] + turn["refused"] == 540
        assert turn["rate_times_time"] + turn["burst"] == pytest.approx(240, abs=6)
    assert 0.97 <= steady["granted_of_allowed"] <= 1.01
    assert away["decided_alone"] > 100
    assert away["granted_of_allowed"] >= 0.9
    assert away["granted_of_bound"] <= 1
    assert {bar["what"] for bar in told["bars"]} == {
        "granted / (rate x time + burst), steady",
        "granted / the documented bound, Redis away",
    }
