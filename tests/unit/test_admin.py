"""/metrics of the running admin port: it comes in pieces, between which everything goes on."""

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from extproc.config import Config
from tests.unit.running_admin import Running, running_admin

TENANTS = 2000


@pytest.fixture
def running() -> Iterator[Running]:
    pools = {"small": {"model": "small-7b", "slots": 4}}
    with running_admin(Config.model_validate({"pools": pools})) as running:
        yield running


async def count(running: Running) -> None:
    for n in range(TENANTS):
        running.gateway.metrics.ttft["small", f"tenant-{n}"].observe(1)


async def test_after_a_head_without_a_body_the_connection_goes_on(running: Running) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        for method in ("HEAD", "GET", "HEAD", "GET"):
            async with session.request(method, f"{running.url}/metrics") as answer:
                assert answer.status == 200
                assert answer.content_type == "text/plain"
                assert (b"forebay_ttft" in await answer.read()) == (method == "GET")


async def test_several_scrape_at_once_and_one_leaves_in_the_middle(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(running.do, count(running))
    host, _, port = running.url.removeprefix("http://").partition(":")

    async def whole(session: aiohttp.ClientSession) -> int:
        async with session.get(f"{running.url}/metrics") as answer:
            return (await answer.text()).count("forebay_ttft_seconds_sum{")

    async def leave() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(100)
        writer.transport.abort()

    async with aiohttp.ClientSession() as session:
        told = await asyncio.gather(
            *(whole(session) for _ in range(2)), *(leave() for _ in range(3))
        )
    assert told[:2] == [TENANTS, TENANTS]
    assert not caplog.records
