"""Changing the config while it runs, the log, the metrics, and what may never stand in them."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from extproc.cli import app
from tests.e2e.client import Gateway, chat
from tests.gateways import MakeGateway

SECRET = "SECRET-8f3a"


@pytest.fixture(scope="module")
def shared_changing(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(policy={"pools": {"small": {"slots": 3}}, "routing": {"fallback": {}}})


@pytest.fixture
def changing(shared_changing: Gateway) -> Iterator[Gateway]:
    yield from put_back(shared_changing)


def put_back(gateway: Gateway) -> Iterator[Gateway]:
    """Its config file is afterwards what it was, and taken."""
    gateway.reset()
    text = (gateway.stack.folder / "envoy.yaml").read_text()
    yield gateway
    taken = reloads(gateway, "taken")
    write(gateway, text)
    gateway.until(lambda: reloads(gateway, "taken") > taken, "the old config is not taken")
    gateway.wait_until_idle()


def reloads(gateway: Gateway, result: str) -> float:
    return gateway.metric(f'forebay_config_reloads_total{{result="{result}"}}')


def write(gateway: Gateway, text: str) -> None:
    """Change the file that the processor reads, as an editor would: a new file."""
    path = gateway.stack.folder / "envoy.yaml"
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def rewrite(gateway: Gateway, **policy: Any) -> None:
    """Change the policy in it."""
    document = yaml.safe_load((gateway.stack.folder / "envoy.yaml").read_text())
    document["node"]["metadata"]["forebay"].update(policy)
    write(gateway, yaml.safe_dump(document))


async def test_a_change_is_taken_while_requests_run(changing: Gateway) -> None:
    gateway, taken = changing, reloads(changing, "taken")
    running = [asyncio.create_task(gateway.ask(chat(max_tokens=600))) for _ in range(3)]
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 3, "not running")
    pools = yaml.safe_load((gateway.stack.folder / "envoy.yaml").read_text())
    pools = pools["node"]["metadata"]["forebay"]["pools"]
    pools["small"]["slots"] = 1
    rewrite(gateway, pools=pools, admission={"high_water": 1, "low_water": 0})
    await gateway.until_async(lambda: gateway.status("small")["slots"] == 1, "not taken")
    assert gateway.status("small")["in_flight"] == 3
    waiting = asyncio.create_task(gateway.ask(chat(max_tokens=1)))
    await gateway.until_async(lambda: gateway.status("small")["queue_depth"] == 1, "not queued")
    assert (await gateway.ask(chat())).code == "overloaded"  # the new mark holds
    assert [answer.status for answer in await asyncio.gather(*running)] == [200] * 3
    assert (await waiting).status == 200
    gateway.wait_until_idle()
    assert reloads(gateway, "taken") == taken + 1


async def test_a_bad_file_is_refused_and_the_old_one_stays(changing: Gateway) -> None:
    gateway, refused = changing, reloads(changing, "refused")
    before = gateway.status("small")["high_water"]
    rewrite(gateway, admission={"high_water": 1, "low_water": 5})
    await gateway.until_async(lambda: reloads(gateway, "refused") == refused + 1, "not seen")
    assert gateway.metric("forebay_config_last_reload_successful") == 0
    assert gateway.status("small")["high_water"] == before
    assert (await gateway.ask(chat(max_tokens=1))).status == 200
    log = gateway.stack.folder / "processor.log"
    told = "forebay.admission: low_water (5) must not be above"
    await gateway.until_async(lambda: told in log.read_text(), "not logged")
    rewrite(gateway, admission={"high_water": 5, "low_water": 1})
    await gateway.until_async(lambda: gateway.status("small")["high_water"] == 5, "not taken")
    assert gateway.metric("forebay_config_last_reload_successful") == 1


@pytest.mark.parametrize("text", ["x: 2026-13-45", "x: " + "9" * 5000, "[" * 3000, "\x00", "[]"])
async def test_whatever_stands_in_a_file_the_watch_goes_on(changing: Gateway, text: str) -> None:
    path, refused = changing.stack.folder / "envoy.yaml", reloads(changing, "refused")
    good = path.read_text()
    path.write_text(text)
    await changing.until_async(lambda: reloads(changing, "refused") > refused, "not seen")
    path.write_text(good)
    rewrite(changing, admission={"high_water": 7})
    await changing.until_async(lambda: changing.status("small")["high_water"] == 7, "not taken")


async def test_a_pool_that_envoy_does_not_know_is_refused(changing: Gateway) -> None:
    path = changing.stack.folder / "envoy.yaml"
    renamed = re.sub(r"\bsmall\b", "tiny", path.read_text())
    path.write_text(renamed.replace("tiny: tiny", "small: tiny"))
    await changing.until_async(
        lambda: changing.metric("forebay_config_last_reload_successful") == 0, "not seen"
    )
    log = changing.stack.folder / "processor.log"
    await changing.until_async(lambda: "does not know tiny" in log.read_text(), "not logged")
    assert (await changing.ask(chat(max_tokens=1))).headers["x-forebay-served-by"] == "small"


async def test_a_pool_that_leaves_and_returns_keeps_its_books(changing: Gateway) -> None:
    gateway = changing
    path = gateway.stack.folder / "envoy.yaml"
    pools = yaml.safe_load(path.read_text())["node"]["metadata"]["forebay"]["pools"]
    running = [asyncio.create_task(gateway.ask(chat(max_tokens=900))) for _ in range(4)]
    await gateway.until_async(lambda: gateway.status("small")["queue_depth"] == 1, "not queued")
    taken = reloads(gateway, "taken")
    rewrite(gateway, pools={"large": pools["large"]}, routing={})
    await gateway.until_async(lambda: reloads(gateway, "taken") == taken + 1, "not taken")
    rewrite(gateway, pools=pools, routing={})
    await gateway.until_async(lambda: reloads(gateway, "taken") == taken + 2, "not taken")
    status = gateway.status("small")
    assert (status["in_flight"], status["queue_depth"]) == (3, 1)
    assert [answer.status for answer in await asyncio.gather(*running)] == [200] * 4
    gateway.wait_until_idle()


async def test_another_model_in_a_pool_is_another_answer(changing: Gateway) -> None:
    path = changing.stack.folder / "envoy.yaml"
    pools = yaml.safe_load(path.read_text())["node"]["metadata"]["forebay"]["pools"]
    body = chat(temperature=0, max_tokens=1)
    for _ in range(2):
        first = await changing.ask(body)
    assert first.headers["cache-status"].startswith("forebay; hit")
    taken = reloads(changing, "taken")
    rewrite(changing, pools=pools | {"small": pools["small"] | {"model": "small-8b"}})
    await changing.until_async(lambda: reloads(changing, "taken") == taken + 1, "not taken")
    assert (await changing.ask(body)).headers["cache-status"] == "forebay; fwd=uri-miss"
    log = changing.stack.folder / "processor.log"
    told = "does not serve 'small-8b', the model that the policy says; it serves 'small-7b'. "
    await changing.until_async(lambda: told in log.read_text(), "not logged")


async def test_a_missing_file_is_refused_too(changing: Gateway) -> None:
    refused = reloads(changing, "refused")
    (changing.stack.folder / "envoy.yaml").rename(changing.stack.folder / "gone.yaml")
    await changing.until_async(lambda: reloads(changing, "refused") == refused + 1, "not seen")
    assert (await changing.ask(chat(max_tokens=1))).status == 200


async def test_each_exchange_has_one_log_line_with_its_reasons(gateway: Gateway) -> None:
    served = await gateway.ask(chat("Why", max_tokens=1))
    refused = await gateway.ask(chat(model="gpt-9"))
    log = gateway.stack.folder / "processor.log"
    ids = [answer.headers["x-request-id"] for answer in (served, refused)]

    def logged() -> list[str]:
        lines = [line for line in log.read_text().splitlines() if '"message":"exchange"' in line]
        return [line for line in lines if any(one in line for one in ids)]

    await gateway.until_async(lambda: len(logged()) >= 2, "not logged")
    lines = [json.loads(line) for line in logged()]
    by_id = {line["request_id"]: line for line in lines}
    assert len(by_id) == len(lines) == 2
    line = by_id[served.headers["x-request-id"]]
    assert line["decision"] == "admitted"
    assert (line["pool"], line["reason"], line["cache"]) == ("large", "word-why", "bypass")
    assert line["queue_ms"] == 0.0
    assert line["ms"] > 0
    assert by_id[refused.headers["x-request-id"]]["decision"] == "model_not_found"


async def test_no_secret_is_in_logs_metrics_or_errors(gateway: Gateway) -> None:
    said = b""
    secret_key = {"authorization": f"Bearer {SECRET}", "x-api-key": SECRET}
    for body, headers in (
        (chat(SECRET, max_tokens=1), {}),
        (chat(SECRET, max_tokens=1), {"x-tenant-id": SECRET, "x-user-id": SECRET}),
        (chat(SECRET), secret_key),
        (chat(SECRET, model=SECRET), {}),
        (chat(SECRET, temperature=0, max_tokens=1), {}),
        (chat(SECRET, temperature=SECRET), {}),
        (chat(SECRET), {"x-latency-budget-ms": SECRET}),
        (f'{{"model": "auto", "messages": [{SECRET}'.encode(), {}),
        (f'{{"model": "auto", "{SECRET}": "\xff"'.encode("latin-1"), {}),
        ({"model": "auto", "messages": [{"role": "user", "content": {SECRET: 1}}]}, {}),
    ):
        answer = await gateway.ask(body, headers=headers)
        if answer.status != 200:
            said += answer.body + repr(answer.headers).encode()
    for url in (
        f"{gateway.stack.config.admin_url}/metrics",
        f"{gateway.stack.config.admin_url}/status",
    ):
        said += gateway.get(url)
    said += gateway.get(f"{gateway.stack.config.envoy_admin_url}/stats")
    await asyncio.sleep(0.7)
    said += _logs(gateway.stack.folder)
    assert len(said) > 10_000
    assert SECRET.encode() not in said
    assert gateway.key.encode() not in said


def _logs(folder: Path) -> bytes:
    return b"".join(log.read_bytes() for log in folder.glob("*.log"))


async def test_metrics_tell_of_cache_routes_marks_and_lag(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(policy={"tenants": {"acme": {}}})
    for _ in range(2):
        await gateway.ask(chat("Why", temperature=0, max_tokens=1))
    await gateway.ask(chat("Why", max_tokens=1))
    metric = gateway.metric
    for result in ("hit", "miss", "bypass"):
        line = f'forebay_cache_requests_total{{result="{result}",tenant="acme"}}'
        assert metric(line) == 1, result
    assert metric('forebay_cache_stored_total{tenant="acme"}') == 1
    assert metric("forebay_cache_entries") == 1
    assert metric("forebay_cache_bytes") > 100
    assert metric('forebay_routes_total{pool="large",reason="word-why"}') == 2
    assert (
        metric('forebay_mark{mark="high_water",pool="small"}')
        == gateway.status("small")["high_water"]
    )
    assert metric("forebay_event_loop_lag_seconds_count") > 0
    assert metric('forebay_decisions_total{decision="cache_hit",tenant="acme"}') == 1


async def test_plan_reads_the_slots_marks_and_service_time_of_a_running_gateway(
    gateway: Gateway,
) -> None:
    assert (await gateway.ask(chat(model="small-7b"))).status == 200
    gateway.wait_until_idle()
    done = CliRunner().invoke(
        app,
        ["plan", "--from", gateway.stack.config.admin_url, "--pool", "small"]
        + ["--arrivals", "2", "--ttft", "1s", "--json"],
    )
    assert done.exit_code == 0, done.output
    planned, small = json.loads(done.stdout), gateway.status("small")
    assert planned["plan"]["slots"] == small["slots"]
    assert planned["plan"]["service_mean_s"] == small["mean_service_s"]
    assert planned["marks"]["present"]["high_water"] == small["high_water"]
