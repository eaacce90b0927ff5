"""One exchange: from the request's headers to the last byte of its answer, in the order it happens.

One gRPC stream of Envoy's is one exchange. It ends in one place, `_end`, whatever ended it. Nothing
here runs per token: after the request is admitted the answer passes by in Envoy.
"""

import asyncio
import time
from functools import partial

from extproc import caps, logs, openai, wire
from extproc.accounting import bill_told
from extproc.admission import BATCH, CLASSES, Lease
from extproc.cache import BYPASS, Caches, Fill, Found, Hit
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
from extproc.last_moments import LastMoments
from extproc.limits import Grant, Refused, Rules
from extproc.passing import Passing
from extproc.refusals import Answered, limited, refused
from extproc.routing import Plan, Unroutable
from extproc.tenants import Tenant, UnknownTenant
from extproc.turn import Gone, Stream, Turn, shed_early

_NOBODY = Tenant("default", ())  # until the tenant is known
# Envoy's buffers hold a little more, for what is spliced into a body that is as large as this.
_LARGEST_BODY_BYTES = 16 * 1024 * 1024


class Exchange:
    """Use once: `await Exchange(gateway, stream).run()`."""

    __slots__ = (
        "_began",
        "_cache_status",
        "_class_index",
        "_config",
        "_decision",
        "_facts",
        "_fill",
        "_gateway",
        "_grant",
        "_loop",
        "_moments",
        "_own",
        "_payer",
        "_policy",
        "_request",
        "_request_id",
        "_stream",
        "_tenant",
        "_turn",
    )

    def __init__(self, gateway: Gateway, stream: Stream) -> None:
        self._gateway = gateway
        self._policy = gateway.policy  # kept to the end, also when the gateway gets another
        self._config = self._policy.config
        self._stream = stream
        loop = self._loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._facts = logs.exchange_line()
        self._moments = LastMoments(gateway, self._policy, loop, self._facts)
        self._tenant = _NOBODY
        self._payer = ""
        """The tenant itself, not its label: tenants without a policy of their own share that."""
        self._class_index = 0
        self._request_id = ""
        self._own = openai.NOTHING  # what it has for vLLM alone
        self._turn: Turn | None = None
        self._grant: Grant | None = None  # of the tenant's limits, if it has any
        self._cache_status = ""
        self._fill: Fill | None = None
        self._request: openai.Request | None = None  # once it is admitted
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
        except Gone:
            pass
        finally:
            self._end()

    def _end(self) -> None:
        """Whatever ended the exchange: give back the slot or the place in the queue, count, log."""
        self._moments.end()
        if self._turn is not None:
            self._turn.end()
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
        policy = self._policy
        headers, path = self._read_headers(await self._stream.receive())
        tenant, payer, class_index = self._tenant, self._payer, self._class_index
        shed_early(policy, tenant, payer, class_index, cache_helps=policy.caches is not None)
        await self._stream.send(
            wire.CONTINUE_HEADERS_SHOW_ANSWER
            if policy.sees_answers and path != openai.EMBEDDINGS
            else wire.CONTINUE_HEADERS
        )
        body = _body_of(await self._stream.receive())

        turn = self._turn = Turn(
            self._gateway,
            policy,
            self._stream,
            self._moments,
            self._loop,
            tenant=tenant,
            payer=payer,
            class_index=class_index,
        )
        request = self._parse(path, body)
        expiry = policy.expiry(tenant.label, path)
        is_batch = class_index == BATCH
        self._moments.expect(expiry, self._began + (turn.max_wait_s if is_batch else 0.0))
        route = self._route(request, headers)
        self._facts["pool"] = route.pools[0]
        shadow = self._gateway.shadow
        sample = None
        # What only vLLM could answer is none to compare servers by.
        if shadow is not None and tenant.sampled and not self._own.contract:
            sample = shadow.drawn(request, route, len(body))
        if tenant.rules is not None:
            await self._take_limits(tenant.rules, request, route)
        found = None
        if policy.caches is not None:
            found = await self._look_up(policy.caches, request, headers, route, body)
        prefix = ""
        if self._config.routing.prefix_affinity:
            apart = policy.injections.salts
            prefix = openai.prefix_hash(request, payer if apart else "")
        request.forget_prompt()
        may_cap = policy.may_cap or request.lowered_to is not None
        if request.usage_splice is None and not may_cap:
            body = b""  # Envoy has it: nothing is held here while the request waits
        stale = await self._use(found, request, route, len(body)) if found else None
        tiers, degraded = await turn.take(
            request,
            route,
            None if stale is None else partial(self._replay_stale, stale, request, route),
            size_bytes=len(body),
            owner=self._request_id,
        )
        if is_batch:  # it may have waited for minutes
            self._moments.expect(expiry, self._loop.time())
        self._facts["queue_ms"] = round(turn.waited_s * 1000, 1)
        reply = self._let_in(headers, request, route, tiers, degraded, body, prefix)
        await self._stream.send(reply)
        self._decision = "admitted"
        self._gateway.metrics.routes[tiers[0], route.rule] += 1
        if shadow is not None and sample is not None:
            shadow.begin(sample)

    def _read_headers(self, headers: wire.Message | None) -> tuple[wire.RequestHeaders, str]:
        """And the path; the rest that they say of whose request it is, is kept here."""
        if not isinstance(headers, wire.RequestHeaders):
            raise Gone
        values = headers.values
        path = values.get(":path", "").partition("?")[0]
        self._request_id = values.get("x-request-id", "")
        payer = values.get(self._config.tenant_header)
        try:
            self._tenant = self._policy.tenants.resolve(payer)
        except UnknownTenant:
            message = "Your key is valid, but its tenant has no policy here. Ask the operator."
            raise refused(403, "unknown_tenant", message) from None
        self._payer = payer or ""
        answer_without_body(headers, path, self._tenant, self._config)
        self._tenant = tenant = tenant_at(path, self._tenant, self._config)
        self._class_index = class_index_of(headers, tenant)
        return headers, path

    def _parse(self, path: str, body: bytes) -> openai.Request:
        try:
            request = openai.parse(path, body)
            self._own = self._policy.own_members(request, body)
            caps.lower_to_tenants(request, self._tenant.most_tokens)
            return request
        except openai.ApiError as error:
            raise Answered(error.code, error.status, error.body()) from None

    def _route(self, request: openai.Request, headers: wire.RequestHeaders) -> Plan:
        rules, limits = self._tenant.rules, self._gateway.limits
        frugal = rules is not None and limits.is_frugal(self._payer, rules)
        try:
            return self._policy.route(
                request,
                self._tenant,
                latency_budget_ms(headers),
                self._gateway.down,
                contract=self._own.contract,
                frugal=frugal,
            )
        except Unroutable as refusal:
            raise refused(refusal.status, refusal.why, str(refusal), refusal.param) from None

    async def _take_limits(self, rules: Rules, request: openai.Request, route: Plan) -> None:
        """All that it may cost, estimated for the pool that it goes to first; or it is refused."""
        batch = CLASSES[self._class_index] == "batch"
        cost = self._gateway.cost_estimate(route.pools[0], request, batch=batch)
        lease_s = self._moments.slot_end - self._loop.time()
        taken = await self._gateway.limits.take(self._payer, rules, cost, lease_s)
        if isinstance(taken, Refused):
            self._gateway.metrics.limited[taken.which, self._tenant.label] += 1
            self._facts["limit"] = taken.which
            raise limited(taken, rules)
        self._grant = taken

    async def _look_up(
        self,
        caches: Caches,
        request: openai.Request,
        headers: wire.RequestHeaders,
        route: Plan,
        body: bytes,
    ) -> Found | None:
        """What the caches have for it; None: its tenant has none."""
        query = self._policy.query(
            request,
            body,
            tenant=self._tenant,
            tenant_id=self._payer,
            user_id=headers.values.get(self._config.user_header, ""),
            pool=route.wanted,
            cache_control=headers.values.get("cache-control", ""),
        )
        if query is None:
            return None
        if "?" in headers.values.get(":path", ""):  # it reaches the server, which may read it
            return BYPASS
        return await caches.look_up(query)

    async def _use(
        self, found: Found, request: openai.Request, route: Plan, size_bytes: int
    ) -> Hit | None:
        """Answer from the cache, or get ready to store what the wanted pool will answer. An answer
        that has expired, for the case that the request would be shed. `size_bytes`: what is held
        here of its body."""
        turn = self._turn
        assert turn is not None
        self._fill, self._cache_status = found.fill, found.status
        result, hit = found.result, found.hit
        if found.under_way is not None:
            answer = await turn.follow(found.under_way, size_bytes)
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

    def _replay_stale(self, stale: Hit, request: openai.Request, route: Plan) -> Answered:
        model = self._config.pools[route.wanted].model
        why = "cache; reason=exact; degraded=stale"
        return self._replay(stale, request, stale.status, why, model)

    def _let_in(
        self,
        headers: wire.RequestHeaders,
        request: openai.Request,
        route: Plan,
        tiers: tuple[str, ...],
        degraded: str,
        body: bytes,
        prefix: str,
    ) -> bytes:
        """It has its slot: what is left to be decided, and what Envoy is told. `body`: empty where
        nothing may have to be changed in it."""
        turn = self._turn
        assert turn is not None
        lease = turn.lease
        assert lease is not None
        first, reason = tiers[0], route.reason
        capped, cap_tokens, most_tokens = self._cap(request, first, lease)
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
        self._request = request
        if request.stream and self._moments.partial and self._policy.all_guarded(tiers):
            answer = self._moments.answer = self._passing(request)
            answer.watch()
        self._moments.begin(lease, request, self._request_id, tiers, self._fill)
        plain = self._own is openai.NOTHING and not self._policy.injections.always
        told = {} if plain else self._for_tiers(headers, request, tiers)
        size_bytes = request.size_bytes if new_body is body else len(new_body)
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
        return wire.admit(
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
            timeout_ms=max(int((self._moments.cut_at - self._loop.time()) * 1000), 1),
            request_facts={
                "queue": turn.told,
                "bill": bill,
                "model_span": f"{model_span[0]}:{model_span[1]}:{size_bytes}",
                **told,
            },
            body=None if new_body is body else new_body,
            prefix=prefix,
            limits=self._grant.headers if self._grant else (),
        )

    def _cap(self, request: openai.Request, pool: str, lease: Lease) -> tuple[caps.Why, int, int]:
        """Lower its limit to what the policy allows. Why, and what caps.billed says."""
        if not self._policy.may_cap and request.lowered_to is None:
            return "", 0, request.asked_tokens or 0
        fitting = self._tokens_before_the_deadline(request, pool)
        shorter = self._policy.may_shorten and lease.position  # it had to queue
        capped = caps.lower(
            request,
            fitting=fitting,
            shorter=self._config.admission.shorter_tokens if shorter else None,
        )
        return capped, *caps.billed(request, capped, fitting)

    def _tokens_before_the_deadline(self, request: openai.Request, pool: str) -> int | None:
        """How many tokens fit in the time that is left, where an answer that takes longer could
        only be cut. None: there is no such cap."""
        if not self._policy.caps_to_deadline:
            return None
        partial = self._moments.partial
        if partial and self._policy.can_end(pool, stream=request.stream, partial=True):
            return None
        measured = self._gateway.finished.measured[pool]
        return caps.tokens_within(self._moments.deadline - self._loop.time(), measured)

    def _for_tiers(
        self,
        headers: wire.RequestHeaders,
        request: openai.Request,
        tiers: tuple[str, ...],
    ) -> dict[str, str]:
        """What each tier's filter is to put into the body, and to cut out of it."""
        own, injections = self._own, self._policy.injections
        asker = Asker(
            self._class_index,
            self._tenant.priority,
            self._payer,
            headers.values.get(self._config.user_header, ""),
            self._request_id,
            own.salt,
        )
        facts = {
            "adds": injections.members(tiers, asker),
            "cuts": _spans(openai.moved(own.cuts, request, request.lowered_to)),
            "other_cuts": _spans(openai.moved(own.other_cuts, request, request.lowered_to)),
        }
        return {name: value for name, value in facts.items() if value}

    async def _until_the_end(self) -> None:
        """The slot is held for as long as Envoy keeps the stream open."""
        moments = self._moments
        while (message := await self._stream.receive()) is not None:
            match message:
                case wire.AnswerBody():  # by far the most where there are any
                    answer = moments.answer
                    assert answer is not None
                    await answer.body(message)
                    if reason := moments.reason_to_close():
                        answer.close(reason)
                case wire.AnswerHeaders():
                    if moments.answer is None:
                        assert self._request is not None
                        moments.answer = self._passing(self._request)
                    await moments.answer.headers(message)
                case wire.OtherPhase():
                    await self._stream.send(message.reply)
                case _:
                    raise AssertionError("Envoy sent a phase of the request twice")

    def _passing(self, request: openai.Request) -> Passing:
        return Passing(
            self._policy,
            self._gateway.metrics,
            self._stream.send,
            request=request,
            request_id=self._request_id,
            tenant_label=self._tenant.label,
            fill=self._fill,
            may_guard=self._moments.partial,
            facts=self._facts,
        )


def _body_of(message: wire.Message | None) -> bytes:
    if isinstance(message, wire.OtherPhase):  # trailers after no body at all
        raise no_body()
    if not isinstance(message, wire.RequestBody):
        raise Gone
    if len(message.body) > _LARGEST_BODY_BYTES:
        message_text = "The request body is larger than the 16 MiB that the gateway accepts."
        raise refused(413, "request_too_large", message_text)
    return message.body


def _spans(spans: tuple[openai.Span, ...]) -> str:
    return " ".join(f"{start}:{end}" for start, end in spans)
