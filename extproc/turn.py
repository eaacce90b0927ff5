"""A request's way to a slot: it is shed, queues, is degraded, or waits for another's answer.

All waiting of an exchange is here, and how long it was. Never reads a message: who leaves while
waiting is gone, and whatever the lease has then comes back by its one `end`.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from extproc import openai, wire
from extproc.admission import Ask, Lease, Limiter, Shed
from extproc.cache import Flight
from extproc.config import HOLD_MARGIN_S
from extproc.gateway import Gateway
from extproc.last_moments import LastMoments
from extproc.policy import Policy
from extproc.refusals import Answered, try_later
from extproc.routing import Plan, from_overflow
from extproc.tenants import Tenant

_NO_QUEUE = '0.0;desc="position 0"'
_FOLLOWING_SHARE = 0.5


class Stream(Protocol):
    """The ext_proc stream of one exchange."""

    async def receive(self) -> wire.Message | None:
        """The next message of Envoy's; None when the exchange has ended."""
        ...

    @property
    def send(self) -> "Callable[[bytes], Coroutine[Any, Any, None]]": ...

    def receiving(self) -> "asyncio.Task[wire.Message | None]":
        """The next message while something else is awaited too; `receive` then returns it."""
        ...


class Gone(Exception):
    """The client left before it was answered."""


class Turn:
    """`payer`: the tenant itself, not its label: tenants without a policy of their own share that.
    `class_index`: in admission.CLASSES. `moments`: of the request's answer."""

    __slots__ = (
        "_admission",
        "_class_index",
        "_gateway",
        "_is_held_longer",
        "_limiters",
        "_loop",
        "_moments",
        "_payer",
        "_stream",
        "_tenant",
        "lease",
        "waited_s",
    )

    def __init__(
        self,
        gateway: Gateway,
        policy: Policy,
        stream: Stream,
        moments: LastMoments,
        loop: asyncio.AbstractEventLoop,
        *,
        tenant: Tenant,
        payer: str,
        class_index: int,
    ) -> None:
        self._gateway = gateway
        self._admission = policy.config.admission
        self._limiters = policy.limiters
        self._stream = stream
        self._moments = moments
        self._tenant = tenant
        self._payer = payer
        self._class_index = class_index
        self._loop = loop
        self._is_held_longer = False  # Envoy has been told to
        self.waited_s = 0.0
        """In all."""
        self.lease: Lease | None = None

    def end(self) -> None:
        """Give back the slot or the place in the queue."""
        if self.lease is not None:
            self.lease.end()

    @property
    def max_wait_s(self) -> float:
        return self._admission.waits_s[self._class_index]

    @property
    def _may_wait_longer(self) -> bool:
        """Only a batch request may, and not beyond its deadline."""
        is_due = self._loop.time() >= self._moments.deadline
        return self.max_wait_s > self._admission.max_wait and not is_due

    @property
    def told(self) -> str:
        """What Server-Timing says of the wait, after `queue;dur=`."""
        position = self.lease.position if self.lease is not None else 0
        return f'{self.waited_s * 1000:.1f};desc="position {position}"' if position else _NO_QUEUE

    async def follow(
        self, other: Flight[bytes, openai.Answer], size_bytes: int
    ) -> openai.Answer | None:
        """The answer to the same request, which another exchange is waiting for; None: it failed,
        takes too long, or so many wait already that their bodies fill what a queue may hold. Of the
        time that a request may wait half is kept for the queue. `size_bytes`: what is held here of
        its body."""
        gateway, admission = self._gateway, self._admission
        if size_bytes and gateway.following_bytes + size_bytes > admission.queue_bytes:
            return None
        landed = asyncio.shield(other.landed)
        gateway.following_bytes += size_bytes
        try:
            await self._wait_for(landed, admission.max_wait * _FOLLOWING_SHARE)
        finally:
            gateway.following_bytes -= size_bytes
        return landed.result() if landed.done() else None

    async def take(
        self,
        request: openai.Request,
        route: Plan,
        stale: Callable[[], Answered] | None,
        *,
        size_bytes: int,
        owner: str,
    ) -> tuple[tuple[str, ...], str]:
        """Enter the first tier's pool, queueing if need be, or do what on_overload says, in its
        order. The tiers, and how the request was degraded. `stale`: an answer that has expired.
        `owner`: the request's id. Raises Answered, or Gone.

        The slot stays charged to the first tier, also when a later one serves.
        """
        first = route.pools[0]
        ask = Ask(
            weight=request.sequences,
            tenant=self._payer,
            share=self._tenant.share,
            class_index=self._class_index,
            tokens=self._gateway.tokens_estimate(first, request),
            size_bytes=size_bytes,
            ends_by=self._moments.slot_end,
            owner=owner,
        )
        try:
            if not self._enter(first, ask):
                await self._wait_for_slots(first)
            return route.pools, ""
        except Shed:
            pass
        for way in self._admission.on_overload:
            if way == "cached" and stale is not None:
                self._gateway.metrics.degraded["cache", "stale"] += 1
                raise stale()
            if way == "smaller" and route.smaller:
                with suppress(Shed):
                    if not self._enter(route.smaller[0], ask):
                        await self._wait_for_slots(route.smaller[0])
                    return route.smaller, "smaller"
            if way == "overflow":
                for pool in route.overflow:
                    with suppress(Shed):
                        if not self._enter(pool, ask):
                            await self._wait_for_slots(pool)
                        return from_overflow(route, pool), "overflow"
        raise _overloaded(self._limiters[first], ask)

    def _enter(self, pool: str, ask: Ask) -> bool:
        """Whether it has its slots at once. Raises Shed."""
        lease = self.lease = self._limiters[pool].enter(ask)
        if lease.state != "holding":
            return False
        self._gateway.metrics.queue_wait[pool].observe(0.0)
        return True

    async def _wait_for_slots(self, pool: str) -> None:
        """Raises Shed when the place in the queue was lost to another request."""
        lease = self.lease
        assert lease is not None
        waited_s = await self._wait_for(lease.settled, self._admission.max_wait)
        if not lease.settled.done() and self._may_wait_longer:
            await self._have_it_held_longer()
            waited_s += await self._wait_for(lease.settled, self.max_wait_s)
        if lease.has_ended:
            raise Shed
        if not lease.settled.done():
            raise self._timed_out(self._limiters[pool], lease.ask)
        self._gateway.metrics.queue_wait[pool].observe(waited_s)

    async def _have_it_held_longer(self) -> None:
        if not self._is_held_longer:
            self._is_held_longer = True
            left_s = self.max_wait_s - self.waited_s
            await self._stream.send(wire.hold_longer(left_s + HOLD_MARGIN_S))

    async def _wait_for(self, what: "asyncio.Future[Any]", all_waits_s: float) -> float:
        """Until it is done, or the request has waited for `all_waits_s` in all or its deadline has
        come. How long that was; raises Gone where the client left."""
        began = self._loop.time()
        limit_s = max(min(all_waits_s - self.waited_s, self._moments.deadline - began), 0.0)
        next_message = self._stream.receiving()
        await asyncio.wait(
            (what, next_message), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        waited_s = self._loop.time() - began
        self.waited_s += waited_s
        if next_message.done():  # nothing of Envoy's is due now but the end
            raise Gone
        return waited_s

    def _timed_out(self, limiter: Limiter, ask: Ask) -> Answered:
        message = "No slot became free in time."
        timing = ("server-timing", f"queue;dur={self.told}")
        return try_later("queue_timeout", message, _retry_after_s(limiter, ask), (timing,))


def shed_early(
    policy: Policy, tenant: Tenant, payer: str, class_index: int, *, cache_helps: bool
) -> None:
    """Where every pool of the tenant is at its hard mark, or sheds and no cached answer could help,
    not even the body is read. Raises Answered. The arguments: see Turn."""
    limiters = policy.limiters
    for pool in tenant.pools:
        if limiters[pool].has_room(class_index):
            return
    ask = Ask(tenant=payer, share=tenant.share, class_index=class_index)
    mine = [limiters[pool] for pool in tenant.pools]
    for limiter in mine:
        if not (limiter.is_full(class_index) if cache_helps else limiter.sheds(ask)):
            return
    for limiter in mine:
        limiter.refuse(ask)
    raise _overloaded(min(mine, key=lambda limiter: limiter.drain_s(class_index)), ask)


def _overloaded(limiter: Limiter, ask: Ask) -> Answered:
    return try_later("overloaded", "The gateway sheds load.", _retry_after_s(limiter, ask))


def _retry_after_s(limiter: Limiter, ask: Ask) -> int:
    return limiter.retry_after_s(ask.tenant, ask.share, random.random(), ask.class_index)
