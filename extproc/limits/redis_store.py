"""The books of all tenants in Redis or Valkey, which processors share. Knows no policy for the time
that Redis is away: then it raises Away. No tenant id gets there, only a hash of it.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, cast

from extproc.limits.book import Book
from extproc.limits.rules import Cost, Levels, Rate, Rules, Taken, Which
from extproc.limits.scripts import PRESENT, SETTLE, TAKE
from extproc.redis_link import LAST_S, Away, Command, Link

_WHICH: tuple[Which, ...] = ("requests", "tokens", "concurrent", "budget")
_SEEN_FOR_S = 5
_MOST_TOGETHER = 100
_COMMAND_BYTES = 3000
_PROCESSORS = b"forebay:processors"


class Settled(NamedTuple):
    spent: int
    """Nanodollars in `period`."""
    period: int
    """0: it knows of none."""


class _Write(NamedTuple):
    command: Command
    told: Callable[[Settled], None] | None
    lost: Callable[[bool], None]


class RedisStore:
    """`hashed`: a tenant id as it stands in Redis."""

    def __init__(self, link: Link, hashed: Callable[[str], bytes]) -> None:
        self.link = link
        self._hashed = hashed
        self._clock = time.monotonic
        self._ahead_s: float | None = None
        """Of this clock Redis' own is so much ahead, or less by what an answer took; as heard last.
        None: not known, or several nodes have a clock each."""
        self._waiting: list[_Write] = []
        self._is_writing = False

    async def take(
        self,
        tenant_id: str,
        rules: Rules,
        cost: Cost,
        lease_id: str,
        lease_s: float,
        book: Book,
        late: Callable[[Taken], None],
    ) -> Taken:
        """See Book.take. `book`: what is known of the tenant here. Raises Away; `late`: what Redis
        has granted all the same, only too late. After LAST_S nobody hears of that: what gets there
        later is not done."""
        concurrent = "" if rules.concurrent is None else rules.concurrent
        budget = rules.budget

        def too_late(answer: object) -> None:
            with suppress(Away):
                taken = _taken(answer)
                if taken.refused is None:
                    late(taken)

        sent_s, ahead_s = self._clock(), self._ahead_s
        answer = await self.link.run(
            TAKE,
            self._keys(tenant_id),
            *_rate(rules.requests),
            *_rate(rules.tokens),
            concurrent,
            lease_id,
            max(int(lease_s * 1000), 1),
            *(("", "") if budget is None else (budget.most, budget.per)),
            cost.tokens,
            cost.nano_usd,
            "1" if book.is_ahead else "",
            _finite(book.requests),
            _finite(book.tokens),
            book.period,
            book.heard_spent,
            "" if ahead_s is None else repr(sent_s + LAST_S + ahead_s),
            late=too_late,
        )
        if not self.link.settings.cluster:
            self._ahead_s = _time(answer) - sent_s
        return _taken(answer)

    def settle(
        self,
        tenant_id: str,
        rules: Rules,
        more: Cost,
        period: int,
        book: Book | None,
        told: Callable[[Settled], None],
        lost: Callable[[bool], None],
    ) -> None:
        """See Book.settle. Nobody waits for it; `told` what is spent then. `book`: as for take.
        `lost`: Redis has not answered; true if it may have done it all the same."""
        self._write(
            SETTLE.by_text(
                self._keys(tenant_id)[:1],
                *_rate(rules.requests),
                *_rate(rules.tokens),
                more.tokens,
                more.nano_usd,
                rules.budget.per if rules.budget else "",
                period,
                book.period if book else 0,
                book.heard_spent if book else 0,
            ),
            told,
            lost,
        )

    def release(self, tenant_id: str, lease_id: str, lost: Callable[[bool], None]) -> None:
        """`lost`: as for settle."""
        self._write(("ZREM", self._keys(tenant_id)[1], lease_id), None, lost)

    async def spent(self, tenant_id: str) -> Settled:
        """Raises Away."""
        return _settled(await self.link.ask("HMGET", self._keys(tenant_id)[0], "spent", "period"))

    async def present(self, processor: str) -> int:
        """Say that this one is there; how many there are. Raises Away."""
        answer = await self.link.run(
            PRESENT, (_PROCESSORS,), processor, _SEEN_FOR_S, late=lambda answer: None
        )
        return answer if isinstance(answer, int) else 1

    # --- what nobody waits for ------------------------------------------------------------------

    def _write(
        self,
        command: Command,
        told: Callable[[Settled], None] | None,
        lost: Callable[[bool], None],
    ) -> None:
        """What gathers while some are on their way goes together."""
        self._waiting.append(_Write(command, told, lost))
        if not self._is_writing:
            self._flush()

    def _flush(self) -> None:
        batch, self._waiting = self._waiting[:_MOST_TOGETHER], self._waiting[_MOST_TOGETHER:]
        if not batch:
            return

        def heard(answers: list[Any]) -> None:
            for write, answer in zip(batch, answers, strict=False):
                if write.told is not None:
                    write.told(_settled(answer))

        def lost(may_be_done: bool) -> None:
            for write in batch:
                write.lost(may_be_done)

        def over(_: bool) -> None:
            self._is_writing = False
            self._flush()

        size = _COMMAND_BYTES * len(batch)
        commands = [write.command for write in batch]
        self._is_writing = self.link.write(*commands, size=size, over=over, told=heard, lost=lost)
        if not self._is_writing:  # away, or too slow for what comes
            batch += self._waiting
            self._waiting = []
            lost(False)

    def _keys(self, tenant_id: str) -> tuple[bytes, bytes]:
        name = b"forebay:{%b}:limits" % self._hashed(tenant_id)
        return name, name + b":leases"


def _rate(rate: Rate | None) -> tuple[str, str]:
    return ("", "") if rate is None else (repr(rate.per_s), repr(rate.most))


def _finite(level: float) -> str:
    return "" if level == float("inf") else repr(level)


def _taken(answer: object) -> Taken:
    """Raises Away for what is no answer to TAKE."""
    parts = cast("list[Any]", answer) if isinstance(answer, list) else []
    try:
        refused, requests, tokens, running, spent, period, _ = parts
        which = refused.decode()
        levels = Levels(
            float(requests), float(tokens), int(running), int(float(spent)), int(period)
        )
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise Away from None
    if which and which not in _WHICH:
        raise Away
    return Taken(which or None, levels)


def _time(answer: object) -> float:
    """Of an answer to TAKE. Raises Away."""
    try:
        return float(cast("list[Any]", answer)[-1])
    except (ValueError, TypeError, LookupError):
        raise Away from None


def _settled(answer: object) -> Settled:
    """Nothing, where it is no answer to SETTLE."""
    parts = cast("list[Any]", answer) if isinstance(answer, list) else []
    try:
        spent, period = parts
        return Settled(int(float(spent)), int(period))
    except (ValueError, TypeError, OverflowError):
        return Settled(0, 0)
