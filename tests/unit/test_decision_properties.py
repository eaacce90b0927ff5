"""`forebay route` against the exchange itself: any config, any request, the same tiers and reason,
or the same refusal."""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import wire
from extproc._generated.forebay_ext_proc_pb2 import ProcessingResponse
from extproc.config import Config
from extproc.decision.report import Asked, Refused, decide
from extproc.exchange import Exchange
from extproc.gateway import Gateway
from extproc.openai import CHAT, COMPLETIONS, EMBEDDINGS

GENERATING = ("small", "large", "hosted")
PLACES = (*GENERATING, "vectors")


@st.composite
def configs(draw: st.DrawFn) -> Config:
    def pool(name: str) -> dict[str, Any]:
        return {
            "model": f"m-{name}",
            "slots": 1,
            "server": draw(st.sampled_from(["vllm", "other"])),
            "context": draw(st.sampled_from([None, 300, 3000])),
        }

    pools = {name: pool(name) for name in GENERATING}
    pools["hosted"]["overflow_only"] = draw(st.booleans())
    pools["vectors"] = pool("vectors") | {"serves": "embeddings"}
    lists = st.lists(st.sampled_from(GENERATING), max_size=3)
    mine = draw(st.lists(st.sampled_from(PLACES), min_size=1, unique=True))
    tenant: dict[str, Any] = {"pools": mine}
    if pins := [name for name in mine if name != "vectors"]:
        tenant["pin"] = draw(st.sampled_from([None, *pins]))
    tenant["max_output_tokens"] = draw(st.sampled_from([None, 100]))
    return Config.model_validate(
        {
            "pools": pools,
            "routing": {
                "fallback": {name: draw(lists) for name in GENERATING},
                "aliases": {"gpt": draw(st.sampled_from([*PLACES, "auto"])), "any": "auto"},
                "difficulty": {"policy": draw(st.sampled_from(["off", "rules", "prior"]))},
            },
            "tenants": {"acme": tenant},
        }
    )


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    text = draw(st.sampled_from(["Hi?", "Tell me", "Compare 1 + 2 = 3", "word " * 400]))
    path = draw(st.sampled_from([CHAT, COMPLETIONS, EMBEDDINGS, "/v1/x"]))
    names = ["auto", "gpt", "any", "nobody", *(f"m-{name}" for name in PLACES)]
    body: dict[str, Any] = {"model": draw(st.sampled_from(names))}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt" if path == COMPLETIONS else "input"] = text
    more = st.sampled_from(
        [
            {},
            {"max_tokens": 500},
            {"min_tokens": 3},
            {"structured_outputs": {"choice": ["a"]}},
            {"guided_json": None},
            {"top_k": 3, "priority": 1},
            {"cache_salt": ""},
        ]
    )
    return Asked(
        body=json.dumps(body | draw(more)).encode(),
        path=path,
        tenant=draw(st.sampled_from([None, "acme"])),
        latency_budget_ms=draw(st.none() | st.just(10)),
        down=draw(st.frozensets(st.sampled_from(PLACES), max_size=2)),
    )


class Envoy:
    """Sends one request and keeps what it is told."""

    def __init__(self, asked: Asked) -> None:
        headers = {":path": asked.path, ":method": "POST", "x-request-id": "r"}
        if asked.tenant:
            headers["x-tenant-id"] = asked.tenant
        if asked.latency_budget_ms is not None:
            headers["x-latency-budget-ms"] = str(asked.latency_budget_ms)
        self._left = [wire.RequestHeaders(headers, False), wire.RequestBody(asked.body)]
        self.told: list[ProcessingResponse] = []

    async def receive(self) -> wire.Message | None:
        return self._left.pop(0) if self._left else None

    async def send(self, reply: bytes) -> None:
        self.told.append(ProcessingResponse.FromString(reply))

    def receiving(self) -> "asyncio.Task[wire.Message | None]":
        return asyncio.ensure_future(self.receive())


async def exchanged(config: Config, asked: Asked) -> ProcessingResponse:
    gateway = Gateway(config)
    gateway.down = asked.down
    envoy = Envoy(asked)
    await Exchange(gateway, envoy).run()
    await gateway.close()
    return envoy.told[-1]


@given(config=configs(), asked=questions())
@settings(deadline=None)
def test_what_is_said_is_what_an_exchange_does(config: Config, asked: Asked) -> None:
    told = asyncio.run(exchanged(config, asked))
    found = decide(config, asked)
    if told.HasField("immediate_response"):
        answer = told.immediate_response
        error = json.loads(answer.body)["error"]
        if not isinstance(found, Refused):  # by one of two ways
            assert f"refused: {answer.status.code} {error['code']}" in {
                w.reason for w in found.ways
            }
            return
        assert (found.status, found.code) == (answer.status.code, error["code"])
        assert found.message == error["message"]
        return
    assert not isinstance(found, Refused), (found, told)
    groups = told.dynamic_metadata["pg"]["priority_groups"]
    tiers = tuple(group["name"] for group in groups)
    route = told.dynamic_metadata["forebay"]["route"].partition("reason=")[2]
    reasons = {(way.tiers, way.reason) for way in found.ways}
    capped = route.removesuffix("; capped=tenant")
    assert (tiers, capped) in reasons
    assert (route != capped) == any("max_output_tokens" in cap for cap in found.caps)
