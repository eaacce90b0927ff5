"""Who asks: keys, tenants, and that nobody can say it of himself. And the guard before Python."""

import asyncio
import base64
import hmac
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import trustme
import yaml

from tests.e2e.client import CHAT, Gateway, chat
from tests.gateways import MakeGateway

NIGHTLY = {"authorization": "Bearer sk-demo-nightly"}


@pytest.fixture(scope="module")
def shared_gateway(make_gateway: MakeGateway) -> Gateway:
    """`nightly` may use the large pool only, so that its requests are known by their route."""
    return make_gateway(
        policy={"tenants": {"acme": {"pools": ["small"]}, "nightly": {"pools": ["large"]}}}
    )


@pytest.mark.parametrize(
    "key", ["", "Bearer", "Bearer sk-wrong", "Bearer sk-demo-acme1", "Basic c2s6"]
)
async def test_without_a_valid_key_there_is_no_answer(gateway: Gateway, key: str) -> None:
    answer = await gateway.ask(headers={"authorization": key})
    assert (answer.status, answer.code) == (401, "invalid_api_key")
    assert gateway.received("small") == gateway.received("large") == []


def test_the_official_client_sees_an_authentication_error(gateway: Gateway) -> None:
    with pytest.raises(openai.AuthenticationError):
        gateway.client(api_key="wrong").models.list()


async def test_a_key_in_the_other_header_works_too(gateway: Gateway) -> None:
    answer = await gateway.ask(
        chat(max_tokens=1), headers={"authorization": "", "x-api-key": "sk-demo-nightly"}
    )
    assert answer.headers["x-forebay-served-by"] == "large"


@pytest.mark.parametrize("name", ["x-tenant-id", "X-Tenant-Id", "X-TENANT-ID"])
async def test_a_client_cannot_say_who_it_is(gateway: Gateway, name: str) -> None:
    answer = await gateway.ask(chat(max_tokens=1), headers=NIGHTLY | {name: "acme"})
    assert answer.headers["x-forebay-served-by"] == "large"
    assert "x-tenant-id" not in gateway.received("large")[0]["headers"]


@pytest.mark.parametrize(
    "lines",
    [
        ("x-tenant-id: nightly",),
        ("X-Tenant-ID: nightly", "x-tenant-id: nightly"),
        ("x-tenant-id: acme", "x-tenant-id: nightly", "x-user-id: root"),
        ("x-tenant-id:nightly ",),
        ("connection: x-tenant-id, close", "x-tenant-id: nightly"),
        ("x-forebay-admit: stream", "x-forebay-admit: json", "X-FOREBAY-ADMIT: json"),
        ("x-forebay-tier: large", "X-Forebay-Tier: large"),
        ("x-envoy-original-path: /v1/embeddings", "x-envoy-upstream-rq-timeout-ms: 1"),
        ("x-http-method-override: GET", "x-original-url: /evil"),
    ],
)
@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_forged_headers_change_nothing_over_either_http(
    gateway: Gateway, lines: tuple[str, ...], version: str
) -> None:
    headers = [word for line in lines for word in ("-H", line)]
    said = subprocess.run(
        ["curl", "-sS", "-i", version, "--max-time", "10", *headers]
        + ["-H", f"authorization: Bearer {gateway.key}", "-H", "content-type: application/json"]
        + ["-d", '{"model":"auto","messages":[{"role":"user","content":"Hi"}],"max_tokens":1}']
        + [gateway.url + CHAT],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if "connection" in lines[0] and version != "--http1.1":
        assert " 200" in said.splitlines()[0] or " 400" in said.splitlines()[0]
        return
    assert " 200" in said.splitlines()[0], said
    assert "x-forebay-served-by: small" in said
    (request,) = gateway.received("small")
    forged = {"x-tenant-id", "x-user-id", "x-forebay-admit", "x-forebay-tier"}
    assert not forged & set(request["headers"])


async def test_tenants_that_differ_in_any_byte_share_no_answer(make_gateway: MakeGateway) -> None:
    def believe_the_header(document: Any) -> None:
        chain = document["static_resources"]["listeners"][0]["filter_chains"][0]
        manager = chain["filters"][0]["typed_config"]
        early = manager["early_header_mutation_extensions"][0]["typed_config"]["mutations"]
        early[:] = [m for m in early if m.get("remove") not in ("x-tenant-id", "x-user-id")]
        manager["http_filters"] = [f for f in manager["http_filters"] if f["name"] != "api-keys"]

    gateway = make_gateway(edit=believe_the_header)
    body = json.dumps(chat(temperature=0, max_tokens=1)).encode()

    async def cache_status(tenant: bytes | None) -> bytes:
        line = b"" if tenant is None else b"x-tenant-id: " + tenant + b"\r\n"
        async with gateway.raw() as (reader, writer):
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n".encode()
                + line
                + b"\r\n"
                + body
            )
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 200 "), head
        return next((x for x in head.split(b"\r\n") if x.startswith(b"cache-status")), b"")

    assert b"uri-miss" in await cache_status(b"m\xfcller")
    assert b"uri-miss" in await cache_status(b"m\xf6ller")
    assert b"hit" in await cache_status(b"m\xfcller")
    for nobody in (None, b""):
        await cache_status(nobody)
        assert b"hit" not in await cache_status(nobody), "clients without a tenant share answers"


async def test_an_unknown_tenant_has_the_default_policy_or_none(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(policy={"tenants": {"acme": {}}, "unknown_tenant": "refuse"})
    assert (await gateway.ask(chat(max_tokens=1))).status == 200
    refused = await gateway.ask(headers=NIGHTLY)
    assert (refused.status, refused.code) == (403, "unknown_tenant")


async def test_one_tenant_cannot_use_up_the_gateway_itself(make_gateway: MakeGateway) -> None:
    def tight(document: object) -> None:
        filters = http_filters(document)
        guard = next(f for f in filters if f["name"] == "envoy.filters.http.local_ratelimit")
        bucket = guard["typed_config"]["descriptors"][0]["token_bucket"]
        bucket.update(max_tokens=5, tokens_per_fill=1, fill_interval="60s")

    gateway = make_gateway(edit=tight)
    answers = await asyncio.gather(*(gateway.ask({"x": 1}) for _ in range(8)))
    limited = [answer for answer in answers if answer.status == 429]
    assert len(limited) == 3
    assert {answer.code for answer in limited} == {"rate_limit_exceeded"}
    assert {answer.headers["retry-after"] for answer in limited} == {"1"}
    assert gateway.metric("forebay_decisions_total") == 5, "Python has seen what the guard refused"
    assert (await gateway.ask(chat(max_tokens=1), headers=NIGHTLY)).status == 200


def http_filters(document: object) -> list[dict]:  # type: ignore[type-arg]
    chain = document["static_resources"]["listeners"][0]["filter_chains"][0]  # type: ignore[index]
    return chain["filters"][0]["typed_config"]["http_filters"]


# --- the hardened variants ---------------------------------------------------------------------

ENVOY = Path(__file__).parents[2] / "envoy"


def token(**claims: object) -> str:
    """Signed with the test's symmetric key; a real issuer's would be RS256 or ES256."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    head = part(b'{"alg":"HS256","typ":"JWT","kid":"test"}')
    always = {"iss": "https://idp.example.com", "aud": "llm-gateway", "exp": time.time() + 60}
    body = part(json.dumps(always | claims).encode())
    signature = hmac.digest(b"k" * 32, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{part(signature)}"


def with_jwt(folder: Path) -> Callable[[object], None]:
    """Signed tokens in the place of keys."""
    key = base64.urlsafe_b64encode(b"k" * 32).decode().rstrip("=")
    jwks = folder / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{"kty": "oct", "kid": "test", "alg": "HS256", "k": key}]}))

    def edit(document: object) -> None:
        filters = http_filters(document)
        at = next(i for i, f in enumerate(filters) if f["name"] == "api-keys")
        (filters[at],) = yaml.safe_load((ENVOY / "jwt.yaml").read_text())
        filters[at]["typed_config"]["providers"]["idp"]["local_jwks"]["filename"] = str(jwks)

    return edit


@pytest.fixture(scope="module")
def shared_signed(make_gateway: MakeGateway, tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    return make_gateway(
        policy={
            "tenants": {"acme": {"pools": ["small"]}, "nightly": {"pools": ["large"]}},
            "cache": {"exact": {"scope": "user"}},
        },
        edit=with_jwt(tmp_path_factory.mktemp("jwt")),
    )


@pytest.fixture
def signed(shared_signed: Gateway) -> Gateway:
    shared_signed.reset()
    return shared_signed


async def test_claims_of_a_signed_token_name_the_tenant(signed: Gateway) -> None:
    gateway = signed

    async def ask(bearer: str, **headers: str) -> tuple[int, str | None]:
        authorization = {"authorization": f"Bearer {bearer}"}
        answer = await gateway.ask(chat(max_tokens=1), headers=authorization | headers)
        return answer.status, answer.headers.get("x-forebay-served-by")

    assert await ask(token(tenant="nightly", sub="ann")) == (200, "large")
    assert await ask(token(tenant="acme", sub="ann"), **{"x-tenant-id": "nightly"}) == (
        200,
        "small",
    )
    head, body, _ = token(tenant="nightly").split(".")
    for bad in ("", "x.y.z", f"{head}.{body}.", token(tenant="acme")[:-4] + "AAAA"):
        assert (await ask(bad))[0] == 401
    assert (await ask(token(tenant="acme", exp=1)))[0] == 401
    assert (await ask(token(tenant="acme", iss="https://evil.example.com")))[0] == 401
    assert (await ask(token(tenant="acme", aud="other")))[0] in (401, 403)
    assert not {"authorization", "x-tenant-id"} & set(gateway.received("large")[0]["headers"])


async def test_users_share_no_answers_and_nobody_says_by_himself_who_he_is(
    signed: Gateway,
) -> None:
    gateway = signed

    async def ask(claims: dict[str, str], **headers: str) -> str:
        authorization = {"authorization": f"Bearer {token(**claims)}"}
        body = chat("of a user", max_tokens=1, temperature=0)
        answer = await gateway.ask(body, headers=authorization | headers)
        assert answer.status == 200
        return "hit" if "; hit" in answer.headers["cache-status"] else "fwd"

    ann, bob = {"tenant": "acme", "sub": "ann"}, {"tenant": "acme", "sub": "bob"}
    said = [await ask(ann), await ask(ann), await ask(bob), await ask(bob)]
    assert said == ["fwd", "hit", "fwd", "hit"]
    assert await ask({"tenant": "other", "sub": "ann"}) == "fwd"
    nobody = {"tenant": "acme"}
    for _ in range(2):
        assert await ask(nobody, **{"x-user-id": "ann"}) == "fwd"
    assert "x-user-id" not in gateway.received("small")[0]["headers"]


async def test_a_meshs_header_is_believed_from_the_trusted_peer_only(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    ca, other_ca = trustme.CA(), trustme.CA()
    server = ca.issue_cert("localhost")
    ca.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    server.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    (tmp_path / "tls.crt").write_bytes(b"".join(p.bytes() for p in server.cert_chain_pems))

    def with_mesh(document: Any) -> None:
        chain = document["static_resources"]["listeners"][0]["filter_chains"][0]
        text = (ENVOY / "mesh.yaml").read_text()
        text = text.replace("/etc/forebay/tls", str(tmp_path))
        # trustme makes DNS names only; the kind of name is not what is tested here.
        text = text.replace("san_type: URI", "san_type: DNS")
        text = text.replace("spiffe://cluster.local/ns/ingress/sa/gateway", "ingress.test")
        chain.update(yaml.safe_load(text))
        manager = chain["filters"][0]["typed_config"]
        early = manager["early_header_mutation_extensions"][0]["typed_config"]["mutations"]
        early[:] = [m for m in early if m.get("remove") not in ("x-tenant-id", "x-user-id")]
        manager["http_filters"] = [f for f in manager["http_filters"] if f["name"] != "api-keys"]

    gateway = make_gateway(
        policy={"tenants": {"acme": {"pools": ["small"]}, "nightly": {"pools": ["large"]}}},
        edit=with_mesh,
    )

    def ask(peer: trustme.LeafCert | None) -> str:
        command = ["curl", "-sS", "-i", "--max-time", "5", "--cacert", str(tmp_path / "ca.crt")]
        if peer is not None:
            with peer.private_key_and_cert_chain_pem.tempfile(dir=str(tmp_path)) as pem:
                return _curl([*command, "--cert", pem], gateway)
        return _curl(command, gateway)

    assert "x-forebay-served-by: large" in ask(ca.issue_cert("ingress.test"))
    for stranger in (None, ca.issue_cert("other.test"), other_ca.issue_cert("ingress.test")):
        assert "HTTP/" not in ask(stranger)
    assert gateway.received("small") == []
    assert len(gateway.received("large")) == 1


def _curl(command: list[str], gateway: Gateway) -> str:
    url = gateway.url.replace("http://127.0.0.1", "https://localhost") + CHAT
    body = '{"model":"auto","messages":[{"role":"user","content":"Hi"}],"max_tokens":1}'
    return subprocess.run(
        [*command, "-H", "x-tenant-id: nightly", "-d", body, url], capture_output=True, text=True
    ).stdout
