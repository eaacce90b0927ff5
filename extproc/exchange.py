"""One exchange: from the request's headers to the last byte of its answer, in the order it happens.

One gRPC stream of Envoy's is one exchange. It ends in one place, `_end`, whatever ended it. Nothing
here runs per token: after the request is admitted the answer passes by in Envoy.
"""

import asyncio
import logging
import random
import time
from typing import Protocol

from extproc import openai, tenants, wire
from extproc.admission import Lease, Shed, retry_after_s
from extproc.gateway import Gateway
from extproc.routing import Plan, Unroutable, plan
from extproc.tenants import Tenant

_log = logging.getLogger(__name__)

_STARTED_AT = int(time.time())


class Stream(Protocol):
    """The ext_proc stream of one exchange."""

    async def receive(self) -> wire.Message | None:
        """The next message of Envoy's; None when the exchange has ended."""
        ...

    async def send(self, reply: bytes) -> None: ...

    def receiving(self) -> "asyncio.Task[wire.Message | None]":
        """The next message while something else is awaited too; `receive` then returns it."""
        ...


class _Gone(Exception):
    """The client left before it was answered."""


class _Answered(Exception):
    """The request is answered here and reaches no model."""

    def __init__(
        self, decision: str, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(decision)
        self.decision = decision
        self.status = status
        self.body = body
        self.headers = (("content-type", "application/json"), *headers)


class Exchange:
    """Use once: `await Exchange(gateway, stream).run()`."""

    def __init__(self, gateway: Gateway, stream: Stream) -> None:
        self._gateway = gateway
        self._config = gateway.config  # the exchange keeps the policy that it started with
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + self._config.response.deadline
        self._tenant = Tenant("default", ())
        self._lease: Lease | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        try:
            await self._admit()
            await self._until_the_end()
        except _Answered as answer:
            self._count(answer.decision)
            await self._stream.send(
                wire.immediate(
                    answer.status, answer.headers, answer.body, f"forebay_{answer.decision}"
                )
            )
        except _Gone:
            self._count("client_gone")
        finally:
            self._end()

    def _end(self) -> None:
        """Whatever ended the exchange: give back the slot or the place in the queue."""
        if self._timer is not None:
            self._timer.cancel()
        if self._lease is not None:
            self._lease.end()

    # --- in the order of a request's way ------------------------------------------------------

    async def _admit(self) -> None:
        headers = await self._receive_headers()
        self._tenant = self._resolve_tenant(headers)
        self._answer_without_body(headers)
        self._shed_early()
        await self._stream.send(wire.CONTINUE_HEADERS)
        body = await self._receive_body()

        request = self._parse(headers, body)
        route = self._route(request, headers)
        queued_s = await self._take_slot(route)

        new_body = None
        if request.stream and not request.usage_asked:
            # Without it the server counts no tokens for us; Envoy hides the extra chunk.
            new_body, model_span = openai.with_usage(body, request)
        else:
            model_span = request.model_span
        self._set_timer(route, openai.abort_ids(request, headers.values.get("x-request-id", "")))
        await self._stream.send(
            wire.admit(
                kind="stream" if request.stream else "json",
                tiers=route.pools,
                timeout_ms=self._timeout_ms(),
                facts={
                    "kind": "stream" if request.stream else "json",
                    "tenant": self._tenant.label,
                    "route": f"{route.pools[0]}; reason={route.reason}",
                    "queue_ms": f"{queued_s * 1000:.1f}",
                    "hide_usage": "0" if new_body is None else "1",
                    "models": self._models(request, route),
                    "model_span": f"{model_span[0]}:{model_span[1]}",
                    "body_length": str(len(body if new_body is None else new_body)),
                },
                body=new_body,
            )
        )
        self._count("admitted")

    async def _receive_headers(self) -> wire.RequestHeaders:
        message = await self._stream.receive()
        if isinstance(message, wire.RequestHeaders):
            return message
        raise _Gone

    def _resolve_tenant(self, headers: wire.RequestHeaders) -> Tenant:
        try:
            return tenants.resolve(self._config, headers.values.get(self._config.tenant_header))
        except tenants.UnknownTenant:
            message = "Your key is valid, but its tenant has no policy here. Ask the operator."
            raise _Answered(
                "unknown_tenant",
                403,
                openai.error_body(message, "permission_error", "unknown_tenant"),
            ) from None

    def _answer_without_body(self, headers: wire.RequestHeaders) -> None:
        """What is decided by the request line and the headers alone."""
        method = headers.values.get(":method", "")
        path = headers.values.get(":path", "").partition("?")[0]
        allowed_method = "GET" if path == openai.MODELS else "POST"
        if method != allowed_method:
            raise _Answered(
                "invalid_request",
                405,
                openai.error_body(
                    f"Use {allowed_method} for {path}.",
                    "invalid_request_error",
                    "method_not_allowed",
                ),
                (("allow", allowed_method),),
            )
        if path == openai.MODELS:
            names = [
                self._config.routing.auto_model,
                *(self._config.pools[pool].model for pool in self._tenant.pools),
            ]
            raise _Answered("models", 200, openai.models_body(names, _STARTED_AT))
        if headers.values.get("content-encoding", "identity") != "identity":
            raise _invalid(415, "Send the body uncompressed, without Content-Encoding.")
        if headers.end_of_stream:
            raise _invalid(400, "The request has no body. Send a JSON object.")

    def _shed_early(self) -> None:
        """While every pool of the tenant sheds, not even the body is read."""
        limiters = [self._gateway.pools[pool] for pool in self._tenant.pools]
        if all(limiter.gate.shedding for limiter in limiters):
            raise _overloaded(min(limiter.drain_s() for limiter in limiters))

    async def _receive_body(self) -> bytes:
        message = await self._stream.receive()
        if isinstance(message, wire.RequestBody):
            return message.body
        raise _Gone

    def _parse(self, headers: wire.RequestHeaders, body: bytes) -> openai.Request:
        try:
            return openai.parse(headers.values[":path"].partition("?")[0], body)
        except openai.ApiError as error:
            raise _Answered(error.code, error.status, error.body()) from None

    def _route(self, request: openai.Request, headers: wire.RequestHeaders) -> Plan:
        try:
            return plan(
                model=request.model,
                last_user_text=request.last_user_text,
                tokens_needed=request.prompt_tokens_estimate + (request.max_tokens or 0),
                latency_budget_ms=_latency_budget_ms(headers),
                allowed=self._tenant.pools,
                pools=self._config.pools,
                routing=self._config.routing,
                is_up=self._gateway.backends.is_up,
            )
        except Unroutable as refusal:
            status = 404 if refusal.why == "model_not_found" else 403
            raise _Answered(
                refusal.why,
                status,
                openai.error_body(str(refusal), "invalid_request_error", refusal.why, "model"),
            ) from None

    async def _take_slot(self, route: Plan) -> float:
        """Enter the first tier's pool, queueing if need be; seconds waited.

        The slot stays charged to the first tier, also when a later one serves.
        """
        pool = route.pools[0]
        limiter = self._gateway.pools[pool]
        try:
            lease = self._lease = limiter.enter()
        except Shed as shed:
            raise _overloaded(shed.drain_s) from None
        waited_s = 0.0
        if lease.state == "queued":
            began = self._loop.time()
            limit_s = min(self._config.admission.max_wait, self._deadline - began)
            next_message = self._stream.receiving()
            await asyncio.wait(
                (lease.granted, next_message),
                timeout=limit_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            waited_s = self._loop.time() - began
            if next_message.done():  # nothing of Envoy's is due now but the end
                raise _Gone
            if not lease.granted.done():
                raise _try_later("queue_timeout", "No slot became free in time.", limiter.drain_s())
        self._gateway.metrics.queue_wait.labels(pool).observe(waited_s)
        return waited_s

    def _models(self, request: openai.Request, route: Plan) -> str:
        """For each tier whose servers call the model otherwise than the client, its JSON name:
        `;small="small-7b";large="large-70b";`. Spliced into the body by the tier's own filter."""
        renamed = (
            f'{tier}="{self._config.pools[tier].model}";'
            for tier in dict.fromkeys(route.pools)
            if self._config.pools[tier].model != request.model
        )
        return ";" + "".join(renamed)

    def _set_timer(self, route: Plan, request_ids: list[str]) -> None:
        """At the deadline ask the servers that may have the request to end it well-formed."""

        def ask() -> None:
            self._gateway.metrics.asked_to_stop.labels(route.pools[0]).inc()
            self._gateway.backends.ask_to_stop(route.pools, request_ids)

        if self._config.response.on_expiry == "partial":
            self._timer = self._loop.call_at(self._deadline, ask)

    def _timeout_ms(self) -> int:
        """When Envoy cuts the exchange, counted from now: the last resort of the deadline."""
        response = self._config.response
        grace_s = response.grace if response.on_expiry == "partial" else 0.0
        return max(int((self._deadline + grace_s - self._loop.time()) * 1000), 1)

    async def _until_the_end(self) -> None:
        """The slot is held for as long as Envoy keeps the stream open."""
        while (message := await self._stream.receive()) is not None:
            if isinstance(message, wire.OtherPhase):
                await self._stream.send(message.reply)

    def _count(self, decision: str) -> None:
        self._gateway.metrics.decisions.labels(decision, self._tenant.label).inc()


def _latency_budget_ms(headers: wire.RequestHeaders) -> float | None:
    text = headers.values.get("x-latency-budget-ms")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise _invalid(400, "x-latency-budget-ms must be a whole number of milliseconds.")
    return float(text)


def _invalid(status: int, message: str) -> _Answered:
    body = openai.error_body(message, "invalid_request_error", "invalid_request")
    return _Answered("invalid_request", status, body)


def _overloaded(drain_s: float) -> _Answered:
    return _try_later("overloaded", "The gateway sheds load.", drain_s)


def _try_later(code: str, message: str, drain_s: float) -> _Answered:
    seconds = retry_after_s(drain_s, random.random())
    return _Answered(
        code,
        429,
        openai.error_body(f"{message} Try again in {seconds} s.", "rate_limit_error", code),
        (("retry-after", str(seconds)),),
    )
