"""When an answer has to have ended, and what ends it: its deadline, a stop by policy, Envoy's cut.

One timer. It asks and closes; it counts nothing that another part counts.
"""

import asyncio
from math import inf

from extproc import openai
from extproc.admission import Lease
from extproc.cache import Fill
from extproc.config import Expiry
from extproc.gateway import Gateway
from extproc.passing import Passing
from extproc.policy import Policy

_ASK_AGAIN_S = 0.25
_AFTER_THE_CUT_S = 1.0


class LastMoments:
    """Of one exchange, `begin` once it is admitted. `facts`: of its log line."""

    __slots__ = (
        "_facts",
        "_fill",
        "_gateway",
        "_lease",
        "_loop",
        "_policy",
        "_request",
        "_request_id",
        "_stop_reason",
        "_stop_until",
        "_tiers",
        "_timer",
        "answer",
        "cut_at",
        "deadline",
        "partial",
        "slot_end",
    )

    def __init__(
        self,
        gateway: Gateway,
        policy: Policy,
        loop: asyncio.AbstractEventLoop,
        facts: dict[str, object],
    ) -> None:
        self._gateway = gateway
        self._policy = policy
        self._facts = facts
        self._loop = loop
        # Until the request is read nothing has a deadline but Envoy's own limits.
        self.deadline = self.cut_at = self.slot_end = inf
        self.partial = False
        """At its deadline the answer is to end well-formed."""
        self.answer: Passing | None = None
        """If it passes by way of us."""
        self._stop_reason, self._stop_until = "", 0.0  # while it is ended before its deadline
        self._timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """The exchange is over."""
        if self._timer is not None:
            self._timer.cancel()
        if self.answer is not None:
            self.answer.end()

    def expect(self, expiry: Expiry, since: float) -> None:
        """`since`: when the time began to run, by the loop's clock."""
        self.partial = expiry.partial
        self.deadline = since + expiry.deadline_s
        self.cut_at = self.deadline + expiry.grace_s
        self.slot_end = self.cut_at + _AFTER_THE_CUT_S

    def begin(
        self,
        lease: Lease,
        request: openai.Request,
        request_id: str,
        tiers: tuple[str, ...],
        fill: Fill | None,
    ) -> None:
        """From now on servers work on it. `fill`: where its answer would be stored."""
        self._fill = fill
        self._lease = lease
        self._request = request
        self._request_id = request_id
        self._tiers = tiers
        first = self.deadline if self.partial else self.slot_end
        self._timer = self._loop.call_at(first, self._expire)
        can_end = self._policy.can_end(tiers[0], stream=request.stream, partial=self.partial)
        if can_end and request.path != openai.EMBEDDINGS:  # half a vector is of no use
            lease.on_stop = self._stop

    def reason_to_close(self) -> str:
        """Why an answer that passes by way of us is to be ended now; empty: it is not."""
        now = self._loop.time()
        if now >= self.deadline or now < self._stop_until:
            return self._reason_to_end(now) or "deadline"
        return ""

    def _stop(self, reason: str) -> None:
        """End the answer now, as at its deadline (see Lease.stop). A server that does not react
        within the grace keeps it: nothing would end it well-formed."""
        now = self._loop.time()
        assert self._timer is not None
        if self._reason_to_end(now) or now >= self.cut_at:
            return
        self._stop_reason, self._stop_until = reason, now + self._policy.config.response.grace
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
        if now >= self.slot_end:
            self._lease.end()
            return
        if reason := self._reason_to_end(now):
            if self.answer is not None and self.answer.can_close:
                self.answer.close(reason)
            else:
                self._ask_to_stop(reason)
        again = now + _ASK_AGAIN_S
        if not self._reason_to_end(again):
            again = self.deadline if again < self.deadline else self.slot_end
        self._timer = self._loop.call_at(again, self._expire)

    def _reason_to_end(self, at: float) -> str:
        """Why the answer is to be ended well-formed at that moment; empty: it is not."""
        if at < self._stop_until:
            return self._stop_reason
        return "deadline" if self.deadline <= at < self.cut_at else ""

    def _ask_to_stop(self, reason: str) -> None:
        pools = [self._policy.config.pools[tier] for tier in self._tiers]
        ids = openai.abort_ids(self._request, self._request_id)
        asked = self._gateway.backends.ask_to_stop(pools, ids)
        if asked and reason == "deadline" and "asked_to_stop" not in self._facts:
            self._facts["asked_to_stop"] = True
            self._gateway.metrics.asked_to_stop[self._tiers[0]] += 1
