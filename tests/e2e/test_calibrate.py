"""A server is calibrated through the gateway as well, with a client's key."""

import pytest

from serving.calibrate import Server, calibrate
from tests.e2e.client import Gateway
from tests.gateways import MakeGateway


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(sim_args={"small": ("--decode-ms", "20", "--prefill-ms", "100")})


async def test_a_server_behind_the_gateway_is_measured_with_a_clients_key(gateway: Gateway) -> None:
    config = gateway.stack.config
    async with Server(config.url, model="small-7b", api_key=config.demo_key) as server:
        fitted = await calibrate(server, tokens=16)
    assert len(fitted.points) == 8
    assert fitted.step_time.seconds(1, 0) == pytest.approx(0.020, rel=0.25)
    assert fitted.step_time.seconds(8, 0) == pytest.approx(0.020, rel=0.25)
    assert fitted.step_time.per_prefill_token_s == pytest.approx(1e-4, rel=0.25)
    assert len(gateway.received("small")) == 1 + 5 * (1 + 2 + 4 + 8) + 5 * 4
    assert gateway.received("large") == []
