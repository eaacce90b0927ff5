"""`forebay cache` beside real Envoy: what it says of a request is what the request then gets."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from extproc.cli import app
from tests.e2e.client import Answer, Gateway, chat
from tests.gateways import MakeGateway
from tests.redis_server import MISSING, RedisServer, binary

ACME: dict[str, str] = {}
NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}
needs_redis = pytest.mark.skipif(binary() is None, reason=MISSING)


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(policy={"tenants": {"acme": {}, "nightly": {}}})


def cold(text: str, **more: Any) -> dict[str, Any]:
    return chat(text, temperature=0, max_tokens=4, **more)


def run(gateway: Gateway, command: str, *args: str, sent: bytes | None = None) -> Result:
    url = gateway.stack.config.admin_url
    return CliRunner().invoke(app, ["cache", command, "--from", url, *args], input=sent)


def why(gateway: Gateway, body: dict[str, Any], *args: str) -> dict[str, Any]:
    done = run(gateway, "why", "-", "--json", *args, sent=json.dumps(body).encode())
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def stats(gateway: Gateway) -> dict[str, Any]:
    return json.loads(run(gateway, "stats", "--json").stdout)


def hit(answer: Answer) -> bool:
    return answer.headers["cache-status"].startswith("forebay; hit")


async def test_why_says_what_the_next_request_gets_before_and_after_a_purge(
    gateway: Gateway,
) -> None:
    ask = cold("what is why")
    for headers in (ACME, NIGHTLY):
        assert not hit(await gateway.ask(ask, headers=headers))
    before = stats(gateway)
    assert why(gateway, ask, "--tenant", "acme")["conclusion"].startswith("hit (exact): stored ")
    after = stats(gateway)
    for told in (before, after):
        del told["store"]["used_bytes"]  # the first who reads an answer keeps it in another form
    assert before == after
    assert hit(await gateway.ask(ask))

    done = run(gateway, "purge", "--tenant", "acme")
    assert done.exit_code == 0
    assert done.stdout.startswith("1 stored answers of tenant acme, its users' included, are gone")
    told = why(gateway, ask, "--tenant", "acme")
    assert told["conclusion"] == "miss: nothing is stored under this key"
    assert why(gateway, ask, "--tenant", "nightly")["result"] == "hit"
    assert not hit(await gateway.ask(ask))
    assert hit(await gateway.ask(ask, headers=NIGHTLY))
    counted = stats(gateway)["tenants"]
    assert (counted["acme"]["hit"], counted["nightly"]["hit"]) == (1, 1)


async def test_why_and_the_gateway_agree_on_what_is_not_cached(gateway: Gateway) -> None:
    for body, control in (
        (chat("drawn", temperature=1), ""),
        (cold("never"), "no-store"),
        (chat("asked", temperature=1), "max-age=60"),
    ):
        args = ("--tenant", "acme", *(("--cache-control", control) if control else ()))
        told = why(gateway, body, *args)
        answer = await gateway.ask(body, headers={"cache-control": control} if control else {})
        status = answer.headers["cache-status"]
        assert (told["result"] == "bypass") == (status == "forebay; fwd=bypass"), (told, status)
        if told["result"] == "miss":
            assert why(gateway, body, *args)["result"] == "hit"


async def test_an_admin_port_that_is_none_is_one_sentence(gateway: Gateway) -> None:
    url = gateway.url  # Envoy's: it asks for a key
    for command in (("stats",), ("purge", "--tenant", "acme")):
        done = CliRunner().invoke(app, ["cache", *command, "--from", url])
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "is this its admin port" in done.stderr


@needs_redis
async def test_a_redis_that_is_away_is_told(make_gateway: MakeGateway, tmp_path: Path) -> None:
    server = RedisServer(cwd=tmp_path)
    server.start()
    try:
        secret = tmp_path / "secret"
        secret.write_text("0123456789abcdef0123456789abcdef")
        store = {"redis": {"url": server.url, "time_limit": "200ms"}}
        cache = {"store": store, "secret_file": str(secret), "exact": {}}
        gateway = make_gateway(
            policy={"cache": cache, "tenants": {"acme": {}}}, edit=_without_max_bytes
        )
        ask = cold("kept in redis")
        assert not hit(await gateway.ask(ask))
        await gateway.until_async(
            lambda: why(gateway, ask, "--tenant", "acme")["result"] == "hit", "it is not written"
        )
        assert stats(gateway)["store"]["state"] == "up"
        assert run(gateway, "purge", "--tenant", "acme").exit_code == 0
        assert why(gateway, ask, "--tenant", "acme")["result"] == "miss"

        server.kill()
        for _ in range(6):
            told = why(gateway, ask, "--tenant", "acme")
        assert "the store did not answer" in told["conclusion"]
        found = stats(gateway)["store"]
        assert found["state"] == "away"
        assert sum(found["failed"].values()) >= 5
        done = run(gateway, "purge", "--tenant", "acme")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "Redis did not take the purge" in done.stderr
    finally:
        server.kill()


def _without_max_bytes(document: Any) -> None:
    """Which is for a store in memory."""
    document["node"]["metadata"]["forebay"]["cache"]["exact"].pop("max_bytes", None)
