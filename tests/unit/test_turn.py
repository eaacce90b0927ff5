"""A request's wait and last moments without Envoy: who has Envoy wait longer, who is stopped."""

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extproc import openai
from extproc.admission import BATCH, Ask, Lease, Limiter, Marks
from extproc.config import AdmissionConfig, Expiry
from extproc.last_moments import LastMoments
from extproc.openai import CHAT, EMBEDDINGS
from extproc.refusals import Answered
from extproc.routing import Plan
from extproc.tenants import Tenant
from extproc.turn import Turn

POLICY: Any = SimpleNamespace(can_end=lambda pool, stream, partial: True)


class Stream:
    """Of a client that stays."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._reading = asyncio.create_task(asyncio.sleep(60))

    async def send(self, message: bytes) -> None:
        self.sent.append(message)

    async def receive(self) -> None:
        await self._reading

    def receiving(self) -> "asyncio.Task[Any]":
        return self._reading


@pytest.mark.parametrize("deadline_s", [0.1, inf])
@pytest.mark.parametrize("class_index", [0, BATCH])
async def test_envoy_is_told_to_wait_longer_once_and_for_a_batch_request_alone(
    class_index: int, deadline_s: float
) -> None:
    loop = asyncio.get_running_loop()
    admission = AdmissionConfig.model_validate({"max_wait": "150ms", "batch": {"max_wait": "1s"}})
    pools = {name: Limiter(1, Marks(9, 4, 9, ""), loop.time) for name in ("small", "large")}
    holders = [pool.enter() for pool in pools.values()]
    gateway: Any = SimpleNamespace(
        tokens_estimate=lambda pool, request: 1,
        metrics=SimpleNamespace(
            queue_wait={name: SimpleNamespace(observe=lambda s: None) for name in pools}
        ),
    )
    policy: Any = SimpleNamespace(
        config=SimpleNamespace(admission=admission), limiters=pools, **vars(POLICY)
    )
    loop = asyncio.get_running_loop()
    moments = LastMoments(gateway, policy, loop, {})
    moments.expect(Expiry(deadline_s, 0.0, False), loop.time())
    stream = Stream()
    turn = Turn(
        gateway,
        policy,
        cast(Any, stream),
        moments,
        loop,
        tenant=Tenant("acme", tuple(pools)),
        payer="acme",
        class_index=class_index,
    )
    request = openai.parse(CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}')
    plan = Plan(("small",), "", "")
    with pytest.raises(Answered) as answer:
        await turn.take(request, plan, None, size_bytes=0, owner="one")
    turn.end()
    for holder in holders:
        holder.end()
    assert answer.value.decision == "queue_timeout"
    assert len(stream.sent) == (class_index == BATCH and deadline_s == inf)
    assert not any(pool.in_flight or pool.waiting for pool in pools.values())


@pytest.mark.parametrize(("path", "is_stopped"), [(CHAT, True), (EMBEDDINGS, False)])
async def test_vectors_are_not_stopped_since_half_a_vector_is_of_no_use(
    path: str, is_stopped: bool
) -> None:
    body = b'{"model": "m", "input": "Hi", "messages": [{"role": "user", "content": "Hi"}]}'
    gateway: Any = SimpleNamespace()
    moments = LastMoments(gateway, POLICY, asyncio.get_running_loop(), {})
    moments.expect(Expiry(60, 0, False), 0.0)
    lease = Limiter(1, Marks(1, 0, 1, ""), lambda: 0.0).enter(Ask(class_index=BATCH))
    assert isinstance(lease, Lease)
    moments.begin(lease, openai.parse(path, body), "id", ("small",), None)
    assert (lease.on_stop is not None) == is_stopped
    moments.end()
