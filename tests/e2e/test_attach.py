"""Attached bootstraps against the real Envoy: it takes them, and they work."""

import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
import yaml

from extproc.attach import Options, attach
from extproc.check import check
from extproc.up import Options as StackOptions
from extproc.up import Stack, find_envoy
from tests.e2e.client import Gateway, chat
from tests.gateways import FAST

DATA = Path(__file__).parents[1] / "data"
KEYS = Path(__file__).parents[2] / "envoy" / "api-keys.yaml"
STYLES = {path.stem: path.read_text() for path in [DATA / "plain.yaml", *DATA.glob("attach/*")]}

# What the person who wrote the file set and `attach` leaves alone, `check` has to find.
THEIRS = {"grown": {"retry-budget", "body-limit"}}


@pytest.mark.parametrize("style", STYLES)
def test_envoy_takes_what_attach_writes_and_check_agrees(style: str, tmp_path: Path) -> None:
    options = Options(pools=("little", "big")) if style == "anchors" else Options()
    text = attach(STYLES[style], options).text
    certificate = trustme.CA().issue_cert("example.com")
    certificate.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    text = text.replace("/etc/forebay/api-keys.yaml", str(KEYS))
    text = text.replace("/etc/envoy/", f"{tmp_path}/")
    path = tmp_path / "envoy.yaml"
    path.write_text(text)
    command = [find_envoy(), "--mode", "validate", "-c", str(path), "-l", "error"]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    errors = {
        finding.rule for finding in check(yaml.safe_load(text)) if finding.severity == "error"
    }
    assert errors == THEIRS.get(style, set())


# --- a running one -----------------------------------------------------------------------------


class Web(BaseHTTPRequestHandler):
    """Some other server behind the gateway: says what it was asked, and fails where told to."""

    def do_GET(self) -> None:
        body = f"{self.path}\n{self.headers}".encode()
        self.send_response(500 if "fail" in self.path else 200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def web_port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory, web_port: int) -> Iterator[Gateway]:
    """The plain file with other routes and another virtual host beside the model's, attached."""
    document = yaml.safe_load(STYLES["plain"])
    static = document["static_resources"]
    chain = static["listeners"][0]["filter_chains"][0]
    hosts = chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    hosts[0]["routes"][0]["route"]["host_rewrite_literal"] = "models.internal"
    hosts[0]["routes"][:0] = [
        {"match": {"path": "/healthz"}, "direct_response": {"status": 200}},
        {"match": {"prefix": "/web"}, "route": {"cluster": "web"}},
    ]
    everything = {"match": {"prefix": "/"}, "route": {"cluster": "web"}}
    hosts.append({"name": "www", "domains": ["www.test"], "routes": [everything]})
    address = {"socket_address": {"address": "127.0.0.1", "port_value": web_port}}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    assignment = {"cluster_name": "web", "endpoints": endpoints}
    static["clusters"].append({"name": "web", "type": "STATIC", "load_assignment": assignment})

    path = tmp_path_factory.mktemp("attached") / "envoy.yaml"
    plain = yaml.safe_dump(document, sort_keys=False)
    path.write_text(attach(plain, Options(pools=("small", "large"))).text)
    sims = {"small": FAST, "large": FAST}
    ports = {"port": 0, "envoy_admin_port": 0, "admin_port": 0}
    stack = Stack(
        StackOptions(config=path, sim_args=sims, concurrency=1, **ports), say=lambda line: None
    )
    try:
        stack.start()
        yield Gateway(stack)
    finally:
        stack.stop()


def fetch(
    gateway: Gateway, path: str, host: str = "x", data: bytes | None = None
) -> tuple[int, str]:
    """Without a key, as the other routes' clients always did."""
    request = urllib.request.Request(gateway.url + path, data=data, headers={"host": host})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_a_request_is_admitted_and_answered(gateway: Gateway) -> None:
    answer = await gateway.ask(chat("Compare the sky of Mars with ours.", max_tokens=2))
    assert (answer.status, answer.headers["x-forebay-served-by"]) == (200, "large")
    answer = await gateway.ask(chat(max_tokens=2, stream=True))
    assert answer.headers["x-forebay-served-by"] == "small"
    assert answer.events[-1]["choices"][0]["finish_reason"] == "length"
    (request,) = gateway.received("small")
    assert request["headers"]["host"] == "models.internal", "as the route said that gave way"


async def test_models_need_a_key(gateway: Gateway) -> None:
    answer = await gateway.ask(headers={"authorization": ""})
    assert (answer.status, answer.code) == (401, "invalid_api_key")


@pytest.mark.parametrize("path", ["/web/page", "/web/v1/chat/completions"])
def test_another_route_works_as_before(gateway: Gateway, path: str) -> None:
    status, body = fetch(gateway, path)
    assert (status, body.splitlines()[0]) == (200, path)
    status, body = fetch(gateway, "/web/fail")
    assert (status, body.splitlines()[0]) == (500, "/web/fail"), "its error page is its own"
    assert fetch(gateway, "/healthz") == (200, "")


def test_another_virtual_host_works_as_before_also_at_the_same_paths(gateway: Gateway) -> None:
    status, body = fetch(gateway, "/v1/chat/completions", "www.test", b"{}")
    assert (status, body.splitlines()[0]) == (200, "/v1/chat/completions")
    assert gateway.received("small") == []


async def test_without_the_processor_a_forged_admit_header_opens_nothing(gateway: Gateway) -> None:
    gateway.stack.kill("processor")
    try:
        for kind in ("json", "stream"):
            answer = await gateway.ask(headers={"x-forebay-admit": kind})
            assert (answer.status, answer.code) == (503, "gateway_unavailable")
        assert fetch(gateway, "/web/page")[0] == 200
    finally:
        gateway.stack.respawn("processor")
    assert gateway.received("small") == gateway.received("large") == []
