"""The processor dies, drains, comes back; `forebay up` starts, complains and stops."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.e2e.client import Gateway, chat
from tests.gateways import REFERENCE, MakeGateway

LARGE = ("--port=0", "--backend=large=http://127.0.0.1:2")
ANY_PORTS = ("--port", "0", "--envoy-admin-port", "0", "--admin-port", "0")


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway()


async def test_a_killed_processor_cuts_no_answer_and_lets_nobody_in(gateway: Gateway) -> None:
    running = [
        asyncio.create_task(gateway.ask(chat(stream=True, max_tokens=200))) for _ in range(20)
    ]
    await gateway.until_async(lambda: gateway.running("small") == 20, "not running")
    gateway.stack.kill("processor")
    while_dead = await gateway.ask_many(10)
    assert {(a.status, a.code) for a in while_dead} == {(503, "gateway_unavailable")}
    assert {answer.headers["retry-after"] for answer in while_dead} == {"1"}
    finished = await asyncio.gather(*running)
    assert [len(answer.events) for answer in finished] == [201] * 20
    assert len(gateway.received("small")) == 20
    assert gateway.received("large") == []

    # Not in a thread of its own: children die with the thread that started them.
    gateway.stack.respawn("processor")
    assert (await gateway.ask(chat(max_tokens=1))).status == 200
    told = 'forebay_tokens_total{kind="completion",pool="small"'
    gateway.until(
        lambda: gateway.metric(told) == 20 * 200 + 1,
        "what ended while nobody heard it is not counted",
        limit_s=10,
    )


async def test_a_stream_that_passes_by_way_of_a_killed_processor_is_not_whole(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway()
    body = chat(stream=True, temperature=0, max_tokens=400)  # it would be stored
    asked = asyncio.create_task(gateway.ask(body))
    await gateway.until_async(lambda: gateway.running("small") == 1, "not running")
    await asyncio.sleep(0.3)
    gateway.stack.kill("processor")
    with pytest.raises(aiohttp.ClientPayloadError):
        await asked
    gateway.stack.respawn("processor")
    died = 'forebay_endings_total{ending="processor_died",pool="small"}'
    gateway.until(lambda: gateway.metric(died) == 1, "not told", limit_s=10)
    assert gateway.metric("forebay_endings_total") == 1


async def test_a_request_held_in_the_queue_is_not_let_in_when_the_processor_dies(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(
        policy={"pools": {"small": {"slots": 1}}, "admission": {"high_water": 9}}
    )
    holder = asyncio.create_task(gateway.ask(chat(max_tokens=300)))
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 1, "not running")
    held = [asyncio.create_task(gateway.ask(chat(max_tokens=1))) for _ in range(3)]
    await gateway.until_async(lambda: gateway.status("small")["queue_depth"] == 3, "not queued")
    gateway.stack.kill("processor")
    answers = await asyncio.gather(*held)
    assert {(a.status, a.code) for a in answers} == {(503, "gateway_unavailable")}
    assert (await holder).status == 200
    assert len(gateway.received("small")) == 1


async def test_a_processor_that_cannot_be_reached_is_passed_by(make_gateway: MakeGateway) -> None:
    def beside_a_dead_one(document: Any) -> None:
        clusters = document["static_resources"]["clusters"]
        (ours,) = (one for one in clusters if one["name"] == "forebay")
        dead = {"endpoint": {"address": {"pipe": {"path": "/nobody/listens.sock"}}}}
        ours["load_assignment"]["endpoints"][0]["lb_endpoints"].append(dead)

    gateway = make_gateway(edit=beside_a_dead_one)
    answers = await gateway.ask_many(20)
    assert {answer.status for answer in answers} == {200}
    gateway.wait_until_accounted()


async def test_a_draining_processor_finishes_what_runs_and_takes_nothing_new(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway()
    await gateway.ask(chat(max_tokens=1))
    gateway.wait_until_accounted()
    before = gateway.metric("forebay_tokens_total")
    running = asyncio.create_task(gateway.ask(chat(stream=True, max_tokens=300)))
    await gateway.until_async(lambda: gateway.status("small")["in_flight"] == 1, "not running")
    os.kill(gateway.stack.pid("processor"), signal.SIGTERM)
    await asyncio.sleep(0.3)
    refused = await gateway.ask()
    assert (refused.status, refused.code) == (503, "gateway_unavailable")
    assert not running.done()
    assert len((await running).events) == 301
    gateway.until(
        lambda: gateway.metric("forebay_tokens_total") > before + 300,
        "it ends before it has heard of its last exchange",
        limit_s=1.4,
    )
    gateway.until(lambda: _gone(gateway.stack.pid("processor")), "it does not end", limit_s=2.5)


async def test_with_a_broken_file_of_keys_clients_hear_that_it_is_the_gateways_fault(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text((REFERENCE.parent / "api-keys.yaml").read_text())

    def in_a_file_of_its_own(document: Any) -> None:
        manager = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        filters = manager["typed_config"]["http_filters"]
        (auth,) = (one for one in filters if one["name"] == "api-keys")
        auth["config_discovery"]["config_source"]["path_config_source"]["path"] = str(keys)

    gateway = make_gateway(edit=in_a_file_of_its_own)
    assert (await gateway.ask(chat(max_tokens=1))).status == 200
    gateway.stack.kill("envoy")
    keys.write_text("resources: [")
    gateway.stack.respawn("envoy")
    refused = await gateway.ask(chat(max_tokens=1))
    assert (refused.status, refused.code) == (503, "gateway_unavailable")
    assert "keys" in refused.json["error"]["message"]


def test_up_prints_a_curl_line_that_works_and_leaves_nothing_behind() -> None:
    up = _up()
    try:
        said = _welcome(up)
        curl = said[said.index("curl -i") :].strip()
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=20)
        assert answer.stdout.startswith("HTTP/1.1 200 OK"), answer
        assert "This is a simulated answer" in answer.stdout
        children = _children(up.pid)
        assert len(children) == 4
        killed = next(pid for pid, name in children.items() if "serve" in name)
        os.kill(killed, signal.SIGKILL)
        assert up.stdout
        assert "starting it again" in up.stdout.readline() + up.stdout.readline()
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(20)
    Gateway.until(lambda: all(map(_gone, children)), "processes are left")
    folder = Path(re.search(r"logs +(\S+)", said)[1])  # type: ignore[index]
    assert not folder.exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_up_ends_with_its_terminal_too(signum: signal.Signals) -> None:
    up = _up()
    folder = Path(re.search(r"logs +(\S+)", _welcome(up))[1])  # type: ignore[index]
    children = _children(up.pid)
    up.send_signal(signum)
    assert up.wait(20) == 0
    Gateway.until(lambda: all(map(_gone, children)), "processes are left")
    assert not folder.exists()


def test_up_killed_outright_leaves_no_process_behind() -> None:
    up = _up()
    _welcome(up)
    children = _children(up.pid)
    assert len(children) == 4
    up.kill()
    up.wait()
    Gateway.until(lambda: all(map(_gone, children)), "processes are left")


def test_a_taken_port_is_one_clear_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = _fails("up", "--port", str(port))
    assert f"port {port}, wanted for the gateway, cannot be used" in said
    assert "--port" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("up", "--config", "none.yaml"), "none.yaml: cannot be read"),
        (("serve", "--config", "none.yaml"), "none.yaml: cannot be read"),
        (("up", *ANY_PORTS, "--backend", "small"), "write it as POOL=URL"),
        (("up", "--backend=small=http://nosuch.invalid:1", *LARGE), "is no known host"),
        (("up", "--backend=small=127.0.0.1:1", *LARGE), "write it as http://HOST:PORT"),
        (("up", "--backend=small=http://127.0.0.1:1/v1", *LARGE), "write it as http://HOST:PORT"),
        (
            ("serve", "--config", str(REFERENCE), "--listen", "5051"),
            "write unix:/path or host:port",
        ),
        (("up", *ANY_PORTS, "--backend", "tiny=http://127.0.0.1:1"), "no pool is named 'tiny'"),
        (("up", *ANY_PORTS, "--backend", "small=http://127.0.0.1:1"), "no backend for the pool"),
    ],
)
def test_a_mistake_is_one_clear_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    said = _fails(*arguments)
    assert sentence in said
    assert "Traceback" not in said


def test_a_mistake_in_the_config_names_its_path(tmp_path: Path) -> None:
    document = yaml.safe_load(REFERENCE.read_text())
    document["node"]["metadata"]["forebay"]["pools"]["small"]["slots"] = "many"
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(document))
    for command in ("up", "serve"):
        assert "forebay.pools.small.slots: " in _fails(command, "--config", str(path))


def test_a_missing_socket_folder_is_one_clear_sentence(tmp_path: Path) -> None:
    policy = {"pools": {"small": {"model": "s", "slots": 1}, "large": {"model": "l", "slots": 1}}}
    path = tmp_path / "policy.yaml"
    path.write_text(json.dumps({"forebay": {"admin": "127.0.0.1:0", **policy}}))
    said = _fails("serve", "--config", str(path), "--listen", f"unix:{tmp_path}/no/p.sock")
    assert "does not exist; create it" in said
    assert "--listen" in _fails("serve", "--config", str(path))


def test_real_backends_give_their_model_and_context(make_gateway: MakeGateway) -> None:
    """`--backend` with servers that `up` did not start: other names than in the config."""
    behind = make_gateway(policy={"pools": {"small": {"model": "qwen", "context": 2000}}})
    up = _up(*(f"--backend={pool}={url}" for pool, url in behind.stack.config.backend_urls.items()))
    try:
        said = _welcome(up)
        url = re.search(r"gateway +(\S+)", said)[1]  # type: ignore[index]
        request = urllib.request.Request(f"{url}/v1/models", headers={"x-api-key": behind.key})
        with urllib.request.urlopen(request, timeout=5) as answer:
            models = [model["id"] for model in json.load(answer)["data"]]
        assert models == ["auto", "qwen", "large-70b"]
        assert "simulated" not in said.split("Try it")[0]
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(20)


def _up(*more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "extproc", "up", *ANY_PORTS, *more],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _welcome(up: "subprocess.Popen[str]") -> str:
    """What it prints, up to the curl line."""
    said = ""
    assert up.stdout
    while "curl -i" not in said:
        line = up.stdout.readline()
        assert line, said
        said += line
    return said


def test_a_port_that_does_not_exist_is_refused_by_name() -> None:
    for arguments in (("up", "--port", "99999"), ("sim", "--port", "-1")):
        done = subprocess.run(
            [sys.executable, "-m", "extproc", *arguments],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 2
        assert "--port" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_backend_given_twice_is_two_replicas(make_gateway: MakeGateway) -> None:
    behind = make_gateway(policy={"pools": {"large": {"model": "small-7b"}}})
    one, two = behind.stack.config.backend_urls.values()
    gateway = make_gateway(backends={"small": (one, two), "large": (one,)})
    for _ in range(10):
        assert gateway.post({"max_tokens": 1}) == 200
    for pool in ("small", "large"):
        assert behind.received(pool), f"nothing reached the replica at {pool}"


def _fails(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "extproc", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1, done
    return done.stderr


def _children(pid: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    found[int(folder.name)] = (folder / "cmdline").read_text()
            except OSError:
                continue
    return found


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
