"""Clients that leave at about the moment of their admission: whatever Envoy had our word for is
counted, and of whatever it had not no server has heard."""

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from extproc.bench.contenders import raise_guard
from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway

REQUESTS, SECONDS = 800, 4.0
LONGEST_S = 0.012
"""That a client stays: on a machine with nothing else to do it is admitted after 2 ms."""
# Of all requests, what Envoy knows: its id, whether our word has come, how it ended, its tries.
LINE = "%REQ(X-REQUEST-ID)% %DYNAMIC_METADATA(forebay:kind)% %RESPONSE_FLAGS% "
LINE += "%UPSTREAM_REQUEST_ATTEMPT_COUNT%\n"


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "envoy-told"


@pytest.fixture
def gateway(make_gateway: MakeGateway, told: Path) -> Gateway:
    def edit(document: Any) -> None:
        raise_guard(document)
        (listener,) = document["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        kind = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"
        text = {"text_format_source": {"inline_string": LINE}}
        log = {"@type": kind, "path": str(told), "log_format": text}
        manager["access_log"].append({"name": "told", "typed_config": log})

    return make_gateway(edit=edit, policy={"pools": {"small": {"slots": 64}}})


async def one(gateway: Gateway, draw: random.Random) -> None:
    await asyncio.sleep(draw.random() * SECONDS)
    body = json.dumps(chat("Is it?", max_tokens=draw.choice((1, 5)), temperature=1)).encode()
    lines = (f"content-length: {len(body)}", "content-type: application/json")
    async with gateway.raw() as (reader, writer):
        writer.write(gateway.head(*lines) + body)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(draw.random() * LONGEST_S):
                await reader.read()


def entries(told: Path) -> dict[str, list[str]]:
    """By request id."""
    rows = (line.split(" ") for line in told.read_text().splitlines())
    return {row[0]: row[1:] for row in rows}


def decided(gateway: Gateway) -> dict[str, str]:
    """By request id."""
    (log,) = gateway.stack.folder.glob("*processor*.log")
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    return {line["request_id"]: line["decision"] for line in lines if "decision" in line}


async def test_all_that_envoy_had_our_word_for_is_counted(gateway: Gateway, told: Path) -> None:
    draw = random.Random(11)
    await asyncio.gather(*(one(gateway, draw) for _ in range(REQUESTS)))
    gateway.wait_until_idle()

    def all_is_told() -> bool:
        gateway.get(f"{gateway.stack.config.envoy_admin_url}/reopen_logs", "POST")  # else 10 s
        return len(entries(told)) == REQUESTS

    await Gateway.until_async(all_is_told, "Envoy has not told of all", 15.0)
    rows = entries(told)
    marked = {request for request, (kind, *_) in rows.items() if kind != "-"}
    answers = "forebay_answers_total"
    await Gateway.until_async(lambda: gateway.metric(answers) >= len(marked), "not counted")
    assert gateway.metric(answers) == len(marked)
    admitted = {request for request, what in decided(gateway).items() if what == "admitted"}
    assert len(admitted & marked) > REQUESTS / 4
    for request in admitted - marked:
        assert rows[request] == ["-", "DC", "0"], "its client left, and no server was tried"
