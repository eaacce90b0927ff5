"""One exchange: from the request's headers to the last byte of its answer, in the order it happens.

One gRPC stream of Envoy's is one exchange. It ends in one place, `_end`, whatever ended it. Nothing
here runs per token: after the request is admitted the answer passes by in Envoy.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import Any, Protocol

from extproc import caps, logs, openai, wire
from extproc.accounting import bill_told
from extproc.admission import BATCH, CLASSES, Ask, Lease, Limiter, Shed
from extproc.cache import BYPASS, Fill, Flight, Found, Hit
from extproc.config import HOLD_MARGIN_S, Expiry
from extproc.front import (
    answer_without_body,
    class_index_of,
    feature_of,
    latency_budget_ms,
    no_body,
    tenant_at,
)
from extproc.gateway import Gateway
from extproc.injections import Asker
from extproc.limits import Grant, Refused, Rules
from extproc.passing import Passing
from extproc.refusals import Answered, limited, refused, try_later
from extproc.routing import Plan, Unroutable, from_overflow, without
from extproc.tenants import Tenant, UnknownTenant

_NOBODY = Tenant("default", ())  # until the tenant is known
_NEVER = Expiry(inf, 0.0, False)  # until the request is
_ASK_AGAIN_S = 0.25
_NO_QUEUE = '0.0;desc="position 0"'
_AFTER_THE_CUT_S = 1.0
_FOLLOWING_SHARE = 0.5
# Envoy's buffers hold a little more, for what is spliced into a body that is as large as this.
_LARGEST_BODY_BYTES = 16 * 1024 * 1024


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


class _Gone(Exception):
    """The client left before it was answered."""


class Exchange:
    """Use once: `await Exchange(gateway, stream).run()`."""

    __slots__ = (
        "_abort_ids",
        "_answer",
        "_began",
        "_cache_status",
        "_class_index",
        "_config",
        "_cut_at",
        "_deadline",
        "_decision",
        "_expiry",
        "_facts",
        "_fill",
        "_gateway",
        "_grant",
        "_is_held_longer",
        "_lease",
        "_loop",
        "_own",
        "_partial",
        "_payer",
        "_policy",
        "_request",
        "_request_id",
        "_stop_reason",
        "_stop_until",
        "_stream",
        "_tenant",
        "_tiers",
        "_timer",
        "_waited_s",
    )

    def __init__(self, gateway: Gateway, stream: Stream) -> None:
        self._gateway = gateway
        self._policy = gateway.policy  # kept to the end, also when the gateway gets another
        self._config = self._policy.config
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        # Until the request is parsed nothing has a deadline but Envoy's own limits.
        self._expiry = _NEVER
        self._partial = False
        self._deadline = self._cut_at = inf
        self._stop_reason, self._stop_until = "", 0.0  # while it is ended before its deadline
        self._is_held_longer = False  # Envoy has been told to
        self._tenant = _NOBODY
        self._tiers: tuple[str, ...] = ()
        self._payer = ""
        """The tenant itself, not its label: tenants without a policy of their own share that."""
        self._class_index = 0
        self._waited_s = 0.0
        self._lease: Lease | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request_id = ""
        self._abort_ids: list[str] = []
        self._facts = logs.exchange_line()
        self._cache_status = ""
        self._grant: Grant | None = None  # of the tenant's limits, if it has any
        self._fill: Fill | None = None
        self._request: openai.Request | None = None  # once it is admitted
        self._own = openai.NOTHING  # what it has for vLLM alone
        self._answer: Passing | None = None  # if it passes by way of us
        self._decision = "client_gone"  # until there is another

    async def run(self) -> None:
        try:
            await self._admit()
            await self._until_the_end()
        except Answered as answer:
            self._decision = answer.decision
            details = f"forebay_{answer.decision}"
            limits = self._grant.headers if self._grant else answer.limits
            await self._stream.send(
                wire.immediate(
                    self._request_id, answer.status, answer.headers, answer.body, details, limits
                )
            )
        except _Gone:
            pass
        finally:
            self._end()

    def _end(self) -> None:
        """Whatever ended the exchange: give back the slot or the place in the queue, count, log."""
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            self._answer.end()
        if self._lease is not None:
            self._lease.end()
        if self._grant is not None:
            self._grant.end(admitted=self._decision == "admitted")
        if self._fill is not None:
            self._fill.give_up()  # who follows goes on
        self._gateway.metrics.decisions[self._decision, self._tenant.label] += 1
        facts = self._facts
        facts["request_id"] = self._request_id
        facts["tenant"] = self._tenant.label
        facts["decision"] = self._decision
        facts["ms"] = round((self._loop.time() - self._began) * 1000, 1)
        logs.append(facts)

    # --- in the order of a request's way ------------------------------------------------------

    async def _admit(self) -> None:
        headers = await self._receive_headers()
        path = headers.values.get(":path", "").partition("?")[0]
        self._request_id = headers.values.get("x-request-id", "")
        self._tenant = self._resolve_tenant(headers)
        answer_without_body(headers, path, self._tenant, self._config)
        self._tenant = tenant_at(path, self._tenant, self._config)
        self._payer = headers.values.get(self._config.tenant_header, "")
        self._class_index = class_index_of(headers, self._tenant)
        self._shed_early()
        await self._stream.send(
            wire.CONTINUE_HEADERS_SHOW_ANSWER
            if self._policy.sees_answers and path != openai.EMBEDDINGS
            else wire.CONTINUE_HEADERS
        )
        body = await self._receive_body()

        request = self._parse(path, body)
        caps.lower_to_tenants(request, self._tenant.most_tokens)
        self._expiry = self._policy.expiry(self._tenant.label, path)
        self._partial = self._expiry.partial
        is_batch = self._class_index == BATCH
        self._set_deadline(self._began + (self._max_wait_s if is_batch else 0.0))
        route = self._route(request, headers)
        self._facts["pool"] = route.pools[0]
        shadow = self._gateway.shadow
        sample = None if shadow is None else shadow.drawn(request, route, len(body))
        if self._tenant.rules is not None:
            await self._take_limits(self._tenant.rules, request, route)
        found = await self._look_up(request, headers, route, body)
        affine = self._config.routing.prefix_affinity
        prefix = openai.prefix_hash(request) if affine else ""
        request.forget_prompt()
        length = len(body)
        may_cap = self._policy.may_shorten or self._policy.caps_to_deadline
        if request.usage_splice is None and request.lowered_to is None and not may_cap:
            body = b""  # Envoy has it: nothing is held here while the request waits
        stale = await self._use(found, request, route, len(body)) if found else None
        tiers, degraded = await self._take_slot(request, route, stale, len(body))
        lease = self._lease
        assert lease is not None
        if is_batch:  # it may have waited for minutes
            self._set_deadline(self._loop.time())
        self._facts["queue_ms"] = round(self._waited_s * 1000, 1)

        first, reason = tiers[0], route.reason
        fitting = self._tokens_before_the_deadline(request, first)
        shorter = self._policy.may_shorten and lease.position  # it had to queue
        capped = caps.lower(
            request,
            fitting=fitting,
            shorter=self._config.admission.shorter_tokens if shorter else None,
        )
        if capped == "shorter":
            degraded = f"{degraded}+shorter" if degraded else "shorter"
            if self._fill is not None:
                self._fill.give_up()
                self._fill = None
        # Without the usage the server counts no tokens for us; Envoy hides the extra chunk.
        new_body, model_span = openai.with_changes(body, request, most_tokens=request.lowered_to)
        if degraded:
            reason = f"{reason}; degraded={degraded}"
            self._gateway.metrics.degraded[first, degraded] += 1
        if capped in ("tenant", "deadline"):
            reason = f"{reason}; capped={capped}"
            self._gateway.metrics.capped[first, capped] += 1
            if capped == "deadline" and self._fill is not None:
                self._fill.unless_cut = True
        self._facts["pool"] = first
        self._facts["reason"] = reason
        self._tiers = tiers
        self._request = request
        if request.stream and self._partial and self._policy.all_guarded(tiers):
            self._answer = self._passing()
            self._answer.watch()
        self._abort_ids = openai.abort_ids(request, self._request_id)
        self._set_timer()
        if self._policy.can_end(first, stream=request.stream, partial=self._partial):
            lease.on_stop = self._stop
        cap_tokens, most_tokens = caps.billed(request, capped, fitting)
        bill = bill_told(
            first,
            lease.ask,
            request,
            feature=feature_of(headers, self._config),
            request_class=CLASSES[self._class_index],
            instead_of="" if degraded.startswith("overflow") else route.instead_of,
            cap_tokens=cap_tokens,
            most_tokens=most_tokens,
            charged=self._grant.charged if self._grant else None,
            payer=self._payer,
        )
        await self._stream.send(
            wire.admit(
                wire.AdmitFacts(
                    kind="stream" if request.stream else "json",
                    tiers=tiers,
                    tenant=self._tenant.label,
                    route=f"{first}; reason={reason}",
                    cache_status=self._cache_status,
                    hide_usage=request.usage_splice is not None,
                    models=self._policy.model_names(tiers),
                    uncounted=self._policy.uncounted,
                    asked=request.model,
                ),
                timeout_ms=max(int((self._cut_at - self._loop.time()) * 1000), 1),
                request_facts=(
                    ("queue", _queue(self._waited_s, lease.position)),
                    ("bill", bill),
                    (
                        "model_span",
                        f"{model_span[0]}:{model_span[1]}:"
                        f"{length if new_body is body else len(new_body)}",
                    ),
                    *self._for_tiers(headers, request, tiers),
                ),
                body=None if new_body is body else new_body,
                prefix=prefix,
                limits=self._grant.headers if self._grant else (),
            )
        )
        self._decision = "admitted"
        self._gateway.metrics.routes[first, route.rule] += 1
        if shadow is not None and sample is not None:
            shadow.begin(sample)

    def _tokens_before_the_deadline(self, request: openai.Request, pool: str) -> int | None:
        """How many tokens fit in the time that is left, where an answer that takes longer could
        only be cut. None: there is no such cap."""
        if not self._policy.caps_to_deadline:
            return None
        stream, partial = request.stream, self._partial
        if partial and self._policy.can_end(pool, stream=stream, partial=partial):
            return None
        measured = self._gateway.finished.measured[pool]
        return caps.tokens_within(self._deadline - self._loop.time(), measured)

    def _for_tiers(
        self,
        headers: wire.RequestHeaders,
        request: openai.Request,
        tiers: tuple[str, ...],
    ) -> tuple[tuple[str, str], ...]:
        """What each tier's filter is to put into the body, and to cut out of it."""
        own, injections = self._own, self._policy.injections
        if own is openai.NOTHING and not injections.always:
            return ()
        asker = Asker(
            self._class_index,
            self._tenant.priority,
            self._payer,
            headers.values.get(self._config.user_header, ""),
            self._request_id,
            own.salt,
        )
        facts = (
            ("adds", injections.members(tiers, asker)),
            ("cuts", _spans(openai.moved(own.cuts, request, request.lowered_to))),
            ("other_cuts", _spans(openai.moved(own.other_cuts, request, request.lowered_to))),
        )
        return tuple(fact for fact in facts if fact[1])

    async def _receive_headers(self) -> wire.RequestHeaders:
        message = await self._stream.receive()
        if isinstance(message, wire.RequestHeaders):
            return message
        raise _Gone

    def _resolve_tenant(self, headers: wire.RequestHeaders) -> Tenant:
        try:
            return self._policy.tenants.resolve(headers.values.get(self._config.tenant_header))
        except UnknownTenant:
            message = "Your key is valid, but its tenant has no policy here. Ask the operator."
            raise refused(403, "unknown_tenant", message) from None

    def _shed_early(self) -> None:
        """Where every pool of the tenant is at its hard mark, or sheds and no cached answer could
        help, not even the body is read."""
        limiters = self._policy.limiters
        for pool in self._tenant.pools:
            if limiters[pool].has_room(self._class_index):
                return
        ask = Ask(tenant=self._payer, share=self._tenant.share, class_index=self._class_index)
        helps = self._policy.caches is not None
        mine = [limiters[pool] for pool in self._tenant.pools]
        index = self._class_index
        if all(limiter.is_full(index) if helps else limiter.sheds(ask) for limiter in mine):
            for limiter in mine:
                limiter.refuse(ask)
            raise self._overloaded(min(mine, key=lambda limiter: limiter.drain_s(index)))

    async def _receive_body(self) -> bytes:
        message = await self._stream.receive()
        if isinstance(message, wire.OtherPhase):  # trailers after no body at all
            raise no_body()
        if not isinstance(message, wire.RequestBody):
            raise _Gone
        if len(message.body) > _LARGEST_BODY_BYTES:
            message_text = "The request body is larger than the 16 MiB that the gateway accepts."
            raise refused(413, "request_too_large", message_text)
        return message.body

    def _parse(self, path: str, body: bytes) -> openai.Request:
        try:
            request = openai.parse(path, body)
            self._own = openai.own_members(request, body, for_others=bool(self._policy.others))
            return request
        except openai.ApiError as error:
            raise Answered(error.code, error.status, error.body()) from None

    def _route(self, request: openai.Request, headers: wire.RequestHeaders) -> Plan:
        rules, limits = self._tenant.rules, self._gateway.limits
        frugal = rules is not None and limits.is_frugal(self._payer, rules)
        try:
            plan = self._policy.route(
                request,
                self._tenant,
                latency_budget_ms(headers),
                self._gateway.down,
                frugal=frugal,
            )
        except Unroutable as refusal:
            raise refused(refusal.status, refusal.why, str(refusal), "model") from None
        if not self._own.contract:
            return plan
        name = self._own.contract
        narrowed = without(plan, self._policy.others, f"{name} is for vLLM only")
        if narrowed is None:
            message = f"The servers of this model do not know `{name}`: leave it out."
            raise refused(400, "invalid_request", message, name)
        return narrowed

    async def _take_limits(self, rules: Rules, request: openai.Request, route: Plan) -> None:
        """All that it may cost, estimated for the pool that it goes to first; or it is refused."""
        batch = CLASSES[self._class_index] == "batch"
        cost = self._gateway.cost_estimate(route.pools[0], request, batch=batch)
        lease_s = self._slot_end - self._loop.time()
        taken = await self._gateway.limits.take(self._payer, rules, cost, lease_s)
        if isinstance(taken, Refused):
            self._gateway.metrics.limited[taken.which, self._tenant.label] += 1
            self._facts["limit"] = taken.which
            raise limited(taken)
        self._grant = taken

    async def _look_up(
        self, request: openai.Request, headers: wire.RequestHeaders, route: Plan, body: bytes
    ) -> Found | None:
        """What the caches have for it; None: they are off."""
        query = self._policy.query(
            request,
            body,
            tenant=self._tenant,
            tenant_id=self._payer,
            user_id=headers.values.get(self._config.user_header, ""),
            pool=route.wanted,
            cache_control=headers.values.get("cache-control", ""),
        )
        if self._policy.caches is None or query is None:
            return None
        if "?" in headers.values.get(":path", ""):  # it reaches the server, which may read it
            return BYPASS
        return await self._policy.caches.look_up(query)

    async def _use(
        self, found: Found, request: openai.Request, route: Plan, size_bytes: int
    ) -> Hit | None:
        """Answer from the cache, or get ready to store what the wanted pool will answer. An answer
        that has expired, for the case that the request would be shed. `size_bytes`: what is held
        here of its body."""
        self._fill, self._cache_status = found.fill, found.status
        result, hit = found.result, found.hit
        if found.under_way is not None:
            answer = await self._follow(found.under_way, size_bytes)
            if answer is not None:
                result, hit = "collapsed", Hit(answer, 0.0, 0.0)
                self._cache_status += "; collapsed"
            elif self._fill is not None:
                assert self._policy.caches is not None
                self._policy.caches.lead(self._fill)
        if found.looked is not None:
            self._facts["semantic"] = found.looked.outcome
            self._gateway.metrics.semantic[found.looked.outcome, self._tenant.label] += 1
        self._facts["cache"] = result
        self._gateway.metrics.cache[result, self._tenant.label] += 1
        if hit is None:
            return found.stale
        kind = "semantic" if result == "semantic_hit" else "exact"
        self._gateway.ledger.hit(
            self._config,
            f"{kind}_hit",
            pool=route.wanted,
            tenant=self._tenant.label,
            batch=self._class_index == BATCH,
            prompt=hit.answer.prompt_tokens,
            completion=hit.answer.completion_tokens,
        )
        model = self._config.pools[route.wanted].model
        raise self._replay(hit, request, self._cache_status, f"cache; reason={kind}", model)

    async def _follow(
        self, other: Flight[bytes, openai.Answer], size_bytes: int
    ) -> openai.Answer | None:
        """The answer to the same request, which another exchange is waiting for; None: it failed,
        takes too long, or so many wait already that their bodies fill what a queue may hold. Of the
        time that a request may wait half is kept for the queue."""
        gateway, admission = self._gateway, self._config.admission
        if size_bytes and gateway.following_bytes + size_bytes > admission.queue_bytes:
            return None
        landed = asyncio.shield(other.landed)
        gateway.following_bytes += size_bytes
        try:
            await self._wait_for(landed, admission.max_wait * _FOLLOWING_SHARE)
        finally:
            gateway.following_bytes -= size_bytes
        return landed.result() if landed.done() else None

    def _replay(
        self, hit: Hit, request: openai.Request, status: str, route: str, model: str
    ) -> Answered:
        """A cached answer in the shape that the client asked for, with an id of its own. `model`:
        of the pool that answered."""
        created = int(time.time())
        if request.stream:
            content_type = "text/event-stream"
            body = hit.answer.as_sse(self._request_id, created, with_usage=request.usage_asked)
        else:
            content_type = "application/json"
            body = hit.answer.as_json(self._request_id, created)
        headers = (
            ("age", str(int(hit.age_s))),
            ("cache-status", status),
            ("x-forebay-route", route),
            ("x-forebay-model", model),
        )
        return Answered("cache_hit", 200, body, headers, content_type)

    async def _take_slot(
        self, request: openai.Request, route: Plan, stale: Hit | None, size_bytes: int
    ) -> tuple[tuple[str, ...], str]:
        """Enter the first tier's pool, queueing if need be, or do what on_overload says, in its
        order. The tiers, and how the request was degraded.

        The slot stays charged to the first tier, also when a later one serves.
        """
        limiters = self._policy.limiters
        ask = Ask(
            weight=request.sequences,
            tenant=self._payer,
            share=self._tenant.share,
            class_index=self._class_index,
            tokens=self._gateway.tokens_estimate(route.pools[0], request),
            size_bytes=size_bytes,
            ends_by=self._slot_end,
            owner=self._request_id,
        )
        limiter = limiters[route.pools[0]]
        try:
            await self._enter(limiter, ask, route.pools[0])
            return route.pools, ""
        except Shed:
            pass
        for way in self._config.admission.on_overload:
            if way == "cached" and stale is not None:
                self._gateway.metrics.degraded["cache", "stale"] += 1
                raise self._replay(
                    stale,
                    request,
                    stale.status,
                    "cache; reason=exact; degraded=stale",
                    self._config.pools[route.wanted].model,
                )
            if way == "smaller" and route.smaller:
                with suppress(Shed):
                    await self._enter(limiters[route.smaller[0]], ask, route.smaller[0])
                    return route.smaller, "smaller"
            if way == "overflow":
                for pool in route.overflow:
                    with suppress(Shed):
                        await self._enter(limiters[pool], ask, pool)
                        return from_overflow(route, pool), "overflow"
        raise self._overloaded(limiter)

    async def _enter(self, limiter: Limiter, ask: Ask, pool: str) -> None:
        """Raises Shed also when a place in the queue was lost to another request."""
        lease = self._lease = limiter.enter(ask)
        if lease.state == "holding":
            self._gateway.metrics.queue_wait[pool].observe(0.0)
            return
        waited_s = await self._wait_for(lease.settled, self._config.admission.max_wait)
        if not lease.settled.done() and self._waited_s < self._max_wait_s:  # a batch request
            await self._have_it_held_longer()
            waited_s += await self._wait_for(lease.settled, self._max_wait_s)
        if lease.has_ended:
            raise Shed
        if not lease.settled.done():
            raise self._timed_out(limiter, lease)
        self._gateway.metrics.queue_wait[pool].observe(waited_s)

    @property
    def _max_wait_s(self) -> float:
        return self._config.admission.waits_s[self._class_index]

    async def _have_it_held_longer(self) -> None:
        if not self._is_held_longer:
            self._is_held_longer = True
            left_s = self._max_wait_s - self._waited_s
            await self._stream.send(wire.hold_longer(left_s + HOLD_MARGIN_S))

    async def _wait_for(self, what: "asyncio.Future[Any]", all_waits_s: float) -> float:
        """Until it is done, or the request has waited for `all_waits_s` in all or its deadline has
        come. How long that was; raises _Gone where the client left."""
        began = self._loop.time()
        limit_s = max(min(all_waits_s - self._waited_s, self._deadline - began), 0.0)
        next_message = self._stream.receiving()
        await asyncio.wait(
            (what, next_message), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        waited_s = self._loop.time() - began
        self._waited_s += waited_s
        if next_message.done():  # nothing of Envoy's is due now but the end
            raise _Gone
        return waited_s

    def _overloaded(self, limiter: Limiter) -> Answered:
        return try_later("overloaded", "The gateway sheds load.", self._retry_after_s(limiter))

    def _timed_out(self, limiter: Limiter, lease: Lease) -> Answered:
        message = "No slot became free in time."
        timing = ("server-timing", f"queue;dur={_queue(self._waited_s, lease.position)}")
        return try_later("queue_timeout", message, self._retry_after_s(limiter), (timing,))

    def _retry_after_s(self, limiter: Limiter) -> int:
        return limiter.retry_after_s(
            self._payer, self._tenant.share, random.random(), self._class_index
        )

    def _set_deadline(self, since: float) -> None:
        self._deadline = since + self._expiry.deadline_s
        self._cut_at = self._deadline + self._expiry.grace_s

    def _set_timer(self) -> None:
        first = self._deadline if self._partial else self._slot_end
        self._timer = self._loop.call_at(first, self._expire)

    @property
    def _slot_end(self) -> float:
        return self._cut_at + _AFTER_THE_CUT_S

    def _stop(self, reason: str) -> None:
        """End the answer now, as at its deadline (see Lease.stop). A server that does not react
        within the grace keeps it: nothing would end it well-formed."""
        now = self._loop.time()
        assert self._timer is not None
        if self._reason_to_end(now) or now >= self._cut_at:
            return
        self._stop_reason, self._stop_until = reason, now + self._config.response.grace
        self._facts["stopped"] = reason
        if self._fill is not None:
            self._fill.unless_cut = True
        self._gateway.metrics.stopped[self._tiers[0], reason] += 1
        self._timer.cancel()
        self._expire()

    def _expire(self) -> None:
        """From the deadline on, or a stop, until the answer has ended: end it ourselves if we can,
        else ask the servers that may have the request to. One that is between two tiers, or still
        being read, is unknown to all of them. After Envoy's cut no server works on it: the
        slot is free, even if the client never reads what lies in Envoy's buffers."""
        now = self._loop.time()
        if now >= self._slot_end:
            assert self._lease is not None
            self._lease.end()
            return
        if reason := self._reason_to_end(now):
            if self._answer is not None and self._answer.can_close:
                self._answer.close(reason)
            else:
                self._ask_to_stop(reason)
        again = now + _ASK_AGAIN_S
        if not self._reason_to_end(again):
            again = self._deadline if again < self._deadline else self._slot_end
        self._timer = self._loop.call_at(again, self._expire)

    def _reason_to_end(self, at: float) -> str:
        """Why the answer is to be ended well-formed at that moment; empty: it is not."""
        if at < self._stop_until:
            return self._stop_reason
        return "deadline" if self._deadline <= at < self._cut_at else ""

    def _ask_to_stop(self, reason: str) -> None:
        pools = [self._config.pools[tier] for tier in self._tiers]
        asked = self._gateway.backends.ask_to_stop(pools, self._abort_ids)
        if asked and reason == "deadline" and "asked_to_stop" not in self._facts:
            self._facts["asked_to_stop"] = True
            self._gateway.metrics.asked_to_stop[self._tiers[0]] += 1

    async def _until_the_end(self) -> None:
        """The slot is held for as long as Envoy keeps the stream open."""
        while (message := await self._stream.receive()) is not None:
            match message:
                case wire.AnswerBody():  # by far the most where there are any
                    assert self._answer is not None
                    await self._answer.body(message)
                    now = self._loop.time()
                    if now >= self._deadline or now < self._stop_until:
                        self._answer.close(self._reason_to_end(now) or "deadline")
                case wire.AnswerHeaders():
                    self._answer = self._answer or self._passing()
                    await self._answer.headers(message)
                case wire.OtherPhase():
                    await self._stream.send(message.reply)
                case _:
                    raise AssertionError("Envoy sent a phase of the request twice")

    def _passing(self) -> Passing:
        assert self._request is not None
        return Passing(
            self._policy,
            self._gateway.metrics,
            self._stream.send,
            request=self._request,
            request_id=self._request_id,
            tenant_label=self._tenant.label,
            fill=self._fill,
            may_guard=self._partial,
            facts=self._facts,
        )


def _spans(spans: tuple[openai.Span, ...]) -> str:
    return " ".join(f"{start}:{end}" for start, end in spans)


def _queue(waited_s: float, position: int) -> str:
    """What Server-Timing says of it, after `queue;dur=`."""
    return f'{waited_s * 1000:.1f};desc="position {position}"' if position else _NO_QUEUE
