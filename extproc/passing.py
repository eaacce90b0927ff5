"""The answer of one exchange, where it passes by way of the processor: to be stored, or because we
may have to end it. Most answers do not; then `headers` is all that is ever asked.

When the deadline has come the exchange's timer says; that a server has fallen silent is seen here.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from extproc import openai, wire
from extproc.accounting import guarded
from extproc.cache import Fill
from extproc.metrics import Metrics
from extproc.policy import Policy
from extproc.streaming import Guard

# Envoy may hold a whole answer for us up to this size; a longer one passes in pieces.
_SHORT_BYTES = 1024 * 1024

Send = Callable[[bytes], Coroutine[Any, Any, None]]


class Passing:
    """`request`: as it was admitted. `fill`: where the answer would be stored. `may_guard`: at
    its deadline it is to be ended, not cut. `facts`: of the exchange's log line."""

    __slots__ = (
        "_closing",
        "_facts",
        "_fill",
        "_guard",
        "_has_ended",
        "_heard_at",
        "_incomplete",
        "_loop",
        "_may_guard",
        "_metrics",
        "_policy",
        "_request",
        "_request_id",
        "_send",
        "_sending",
        "_served_by",
        "_stall_timer",
        "_tenant_label",
        "_whole",
    )

    def __init__(
        self,
        policy: Policy,
        metrics: Metrics,
        send: Send,
        *,
        request: openai.Request,
        request_id: str,
        tenant_label: str,
        fill: Fill | None,
        may_guard: bool,
        facts: dict[str, object],
    ) -> None:
        self._policy = policy
        self._metrics = metrics
        self._send = send
        self._request = request
        self._request_id = request_id
        self._tenant_label = tenant_label
        self._fill = fill
        self._may_guard = may_guard
        self._facts = facts
        self._guard: Guard | None = None
        self._served_by = ""
        self._whole = False  # the answer comes in one message
        self._sending = False  # a piece of a guarded answer
        self._has_ended = False  # by our word
        self._incomplete = ""  # why
        self._closing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_at = 0.0
        self._stall_timer: asyncio.TimerHandle | None = None

    async def headers(self, answer: wire.AnswerHeaders) -> None:
        """Ask for the body only of an answer that may be stored, or that we may have to end."""
        if self._fill is not None and not self._fill.wants(answer.values):
            if (
                answer.values.get(":status") == "200"
            ):  # else it ends soon, and its slot is free then
                self._fill.give_up()
            self._fill = None
        self._served_by = answer.values.get("x-forebay-served-by", "")
        if self._request.stream and self._is_guarded(answer):
            model = self._policy.config.pools[self._served_by].model
            choices = self._request.sequences
            self._guard = Guard(self._request.path, self._request_id, model, choices)
            self._facts["served_by"] = self._served_by
            self.watch()
        else:
            self._watch_no_more()
        if answer.end_of_stream or (self._fill is None and self._guard is None):
            reply = wire.PASS_ANSWER
        elif self._request.stream or not _is_short(answer):
            reply = wire.SHOW_ANSWER_PIECES
        else:
            self._whole = True
            reply = wire.SHOW_ANSWER_WHOLE
        await self._send(reply)

    def _is_guarded(self, answer: wire.AnswerHeaders) -> bool:
        pool = self._policy.config.pools.get(self._served_by)
        return (
            self._may_guard
            and pool is not None
            and pool.partial_by == "guard"
            and answer.values.get(":status") == "200"
            and "content-encoding" not in answer.values
            and "event-stream" in answer.values.get("content-type", "event-stream")
        )

    async def body(self, body: wire.AnswerBody) -> None:
        self._keep(body)  # first: who has the last piece may ask again at once
        if self._whole:
            await self._send(wire.PASS_WHOLE)
            return
        piece, end_of_stream = body.piece, body.end_of_stream
        if self._guard is not None:
            if self._has_ended:
                return
            self._heard_at = self._loop.time()
            piece = self._guard.feed(piece)
            if end_of_stream:
                piece += self._guard.end()
            if self._guard.has_failed or (end_of_stream and self._guard.lacks_its_end):
                piece += self._ending("upstream_error")
                end_of_stream = True
        facts = ()
        if self._guard is not None and (end_of_stream or self._guard.is_done):
            facts = (("guarded", self._account()),)
        self._sending = True
        await self._send(wire.piece(piece, end_of_stream=end_of_stream, request_facts=facts))
        self._sending = False

    def _keep(self, body: wire.AnswerBody) -> None:
        """Store the answer when it has ended."""
        if self._fill is None:
            return
        ended = self._fill.feed(body.piece)
        if ended or body.end_of_stream:
            if self._fill.end():
                self._metrics.cache_stored[self._tenant_label] += 1
            self._fill = None

    @property
    def can_close(self) -> bool:
        """Whether we can end the answer ourselves, or have."""
        return self._has_ended or (self._guard is not None and self._guard.can_close)

    def close(self, reason: str) -> None:
        """End the guarded answer here and now; Envoy then drops the server's stream. Two messages
        of ours must not be under way at once: while one is, nothing is done."""
        if self._guard is None or not self._guard.can_close or self._sending or self._has_ended:
            return
        ending = self._ending(reason)
        facts = (("guarded", self._account()),)
        ending = wire.piece(ending, end_of_stream=True, request_facts=facts)
        self._closing = self._loop.create_task(self._send(ending))

    def _ending(self, reason: str) -> bytes:
        """What the server has not written; nothing of the answer is stored."""
        assert self._guard is not None
        self._has_ended = True
        self._fill = None
        if not self._guard.is_whole:
            self._note_incomplete(self._served_by, reason)
        return self._guard.closing(reason, with_usage=self._request.usage_asked)

    def _account(self) -> str:
        """What Envoy's log is to say of a guarded stream: see extproc.accounting."""
        assert self._guard is not None
        return guarded(self._incomplete, self._guard.usage, self._guard.tokens_estimate)

    def _note_incomplete(self, pool: str, reason: str) -> None:
        self._facts["incomplete"] = self._incomplete = reason
        self._metrics.closed[pool, reason] += 1

    # --- a server that falls silent -------------------------------------------------------------

    def watch(self) -> None:
        """From now on the server has to say something every `response.stall`, its head first."""
        self._heard_at = self._loop.time()
        if self._stall_timer is None:
            self._look_again_at(self._heard_at + self._policy.config.response.stall)

    def _look_again_at(self, at: float) -> None:
        self._stall_timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        now, stall_s = self._loop.time(), self._policy.config.response.stall
        if self._sending:  # it is the client that does not read
            self._heard_at = now
        if now < self._heard_at + stall_s:
            self._look_again_at(self._heard_at + stall_s)
        elif self.can_close:
            self.close("stall")
        else:  # nothing to end well: Envoy answers 504, or cuts an answer that has a head alone
            self._has_ended = True
            self._note_incomplete(self._served_by or "none", "stall")
            self._closing = self._loop.create_task(self._send(_silent(self._request_id)))

    def _watch_no_more(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def end(self) -> None:
        """The exchange is over."""
        self._watch_no_more()
        if self._closing is not None:
            self._closing.cancel()


def _silent(request_id: str) -> bytes:
    message = "The model did not answer in time."
    body = openai.error_body(message, "server_error", "upstream_timeout")
    headers = (("content-type", "application/json"),)
    return wire.immediate(request_id, 504, headers, body, "forebay_upstream_stall")


def _is_short(answer: wire.AnswerHeaders) -> bool:
    length = answer.values.get("content-length", "")
    return length.isdigit() and len(length) <= 9 and int(length) <= _SHORT_BYTES
