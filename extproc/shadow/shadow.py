"""The life of a sample: drawn while its request is routed, begun once that is admitted, answered by
both pools, judged, written. All tasks are owned here and end with `close`.

It takes a slot of each pool as a batch request does, and only where there is room: a sample never
queues. Whatever fails costs the sample alone, and is one word of a metric.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import aiohttp

from extproc.admission import CLASSES, Ask, Lease, Shed
from extproc.config import LearningConfig, PoolConfig, PriceConfig
from extproc.credential import Credential
from extproc.metrics import Counts
from extproc.openai import Request, Said, asked_again, plain_chat
from extproc.policy import Policy
from extproc.routing import Plan
from extproc.routing.outcome import Outcome, named
from extproc.shadow import judge
from extproc.shadow.ask import NoAnswer, ask, session
from extproc.shadow.bill import Bill
from extproc.shadow.lines import LinesFile, NotAdded
from extproc.shadow.rest import Rest
from extproc.shadow.sample import MOST_VERDICT_TOKENS, Sample, Word, sampled
from extproc.shadow.spend import DaySpend

_log = logging.getLogger(__name__)

_AT_ONCE = 4
_MODEL_TIME_LIMIT_S = 60.0
# Above every limit that a sample has in a pool, for the audit of leases.
_LATE_S = 10.0
_BATCH = CLASSES.index("batch")
# No header can hold it: no tenant is called so.
_PAYER = "\0learning"


class _Lost(Exception):
    def __init__(self, word: Word, why: str = "") -> None:
        super().__init__(why)
        self.word: Word = word
        self.why = why
        """Empty: nothing failed."""


class _Place(NamedTuple):
    """In one pool, for one sample."""

    pool: PoolConfig
    url: str
    lease: Lease
    price: PriceConfig
    priority: int | None
    """See Injections."""


class Shadow:
    def __init__(
        self,
        settings: LearningConfig,
        credential: Credential | None,
        policy: Callable[[], Policy],
        endpoint: Callable[[PoolConfig], str | None],
        spend: DaySpend,
        counts: Counts,
        cost_usd: Counts,
        *,
        draw: Callable[[], float] = random.random,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`policy`: the one of now. `endpoint`: a server of the pool that answers. `spend`: lives
        longer than this. `counts`: by Word. `cost_usd`: of all samples. `now_s`: Unix time."""
        self.settings = settings
        self._headers = {} if credential is None else credential.header()
        self._policy = policy
        self._endpoint = endpoint
        self._spend = spend
        self._counts = counts
        self._cost_usd = cost_usd
        self._draw = draw
        self._now_s = now_s
        self._file = LinesFile(settings.file)
        self._rest = Rest()
        self._http: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[Word]] = set()
        self._closed = False

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def drawn(self, request: Request, route: Plan, body_bytes: int) -> Sample | None:
        """Whether this request, just routed, is of the sample. It still has its prompt. None also
        where nothing could begin now: what waits for a slot must not hold its prompt for us."""
        if self._draw() >= self.settings.share or not route.judged:
            return None
        sample = self._why_not_now() or sampled(request, body_bytes)
        if isinstance(sample, str):
            self._counts[sample] += 1
            return None
        return sample

    def begin(self, sample: Sample) -> None:
        """In the background, if that is possible now."""
        try:
            self._begin(sample)
        except _Lost as lost:
            self._counts[lost.word] += 1

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def _why_not_now(self) -> Word | None:
        policy = self._policy()
        routing = policy.config.routing
        if self._closed:
            return "ended"
        if self._rest.is_on(asyncio.get_running_loop().time()):
            return "resting"
        if len(self._tasks) >= _AT_ONCE:
            return "busy"
        if all(policy.limiters[name].has_room(_BATCH) for name in (routing.small, routing.large)):
            return None
        return "no_room"

    # --- in the order of a sample's way -----------------------------------------------------------

    def _begin(self, sample: Sample) -> None:
        if word := self._why_not_now():
            raise _Lost(word)
        policy = self._policy()
        routing, pools = policy.config.routing, policy.config.pools
        small, large = pools[routing.small], pools[routing.large]
        if small.price is None or large.price is None:  # the config was changed just now
            raise _Lost("ended")
        most_usd = sample.most_usd(small.price, large.price, self.settings.judge.price)
        if not self._spend.reserve(most_usd, self.settings.usd_per_day, self._now_s()):
            raise _Lost("budget")
        places: list[_Place] = []
        try:
            for name, price in ((routing.small, small.price), (routing.large, large.price)):
                places.append(self._place(name, policy, sample, price))
        except _Lost:
            self._end(places, most_usd, 0.0)
            raise
        bill = Bill()
        task = asyncio.create_task(self._go(sample, places, bill), name="learning")
        self._tasks.add(task)

        def make_way(_: str) -> None:  # as a batch request does
            task.cancel()

        for place in places:
            place.lease.on_stop = make_way

        def done(task: "asyncio.Task[Word]") -> None:
            self._tasks.discard(task)
            self._end(places, most_usd, bill.usd)
            self._counts["ended" if task.cancelled() else task.result()] += 1

        task.add_done_callback(done)  # also of one that was cancelled before its first step

    def _place(self, name: str, policy: Policy, sample: Sample, price: PriceConfig) -> _Place:
        pool, limiter = policy.config.pools[name], policy.limiters[name]
        url = self._endpoint(pool)
        if url is None:
            raise _Lost("no_room")
        wanted = Ask(
            tenant=_PAYER,
            class_index=_BATCH,
            tokens=sample.prompt_tokens_estimate + sample.answer_tokens,
            ends_by=limiter.clock() + _MODEL_TIME_LIMIT_S + _LATE_S,
            owner="a sample for routing.learning",
        )
        try:
            lease = limiter.enter(wanted)
        except Shed:
            raise _Lost("no_room") from None
        if lease.state != "holding":
            lease.end()
            raise _Lost("no_room")
        return _Place(pool, url, lease, price, policy.injections.batch_priority(name))

    async def _go(self, sample: Sample, places: list[_Place], bill: Bill) -> Word:
        try:
            await self._learn(sample, places, bill)
        except _Lost as lost:
            if lost.why:
                self._has_failed(lost)
            return lost.word
        except Exception as error:  # its message might hold a piece of a prompt
            _log.error("a sample for routing.learning failed: %s", type(error).__name__)
            return "failed"
        self._rest.worked()
        return "recorded"

    async def _learn(self, sample: Sample, places: list[_Place], bill: Bill) -> None:
        small, large = await self._answers(sample, places, bill)
        if sample.cut_is_ours and (small.cut or large.cut):
            raise _Lost("cut")
        small_right, large_right = await self._judged(sample, small.text, large.text, bill)
        outcome = Outcome(
            time_s=sample.time_s,
            features=named(sample.features),
            small_right=small_right,
            large_right=large_right,
            propensity=self.settings.share,
        )
        try:
            await self._file.add(outcome.model_dump_json().encode())
        except NotAdded as error:
            raise _Lost("file_failed", str(error)) from None

    async def _answers(self, sample: Sample, places: list[_Place], bill: Bill) -> tuple[Said, Said]:
        try:
            async with asyncio.TaskGroup() as both:  # one that fails ends the other
                tasks = [both.create_task(self._answer(sample, p, bill)) for p in places]
        except ExceptionGroup as group:
            first = group.exceptions[0]
            if not isinstance(first, NoAnswer):
                raise
            # A client's mistake, which a sample repeats, is no reason to rest.
            raise _Lost("model_failed", "" if first.by_question else str(first)) from None
        return tasks[0].result(), tasks[1].result()

    async def _answer(self, sample: Sample, place: _Place, bill: Bill) -> Said:
        """Of one pool, whose slot is given back as soon as it is there."""
        pool = place.pool
        is_vllm = pool.server == "vllm"
        body = asked_again(
            sample.members,
            pool.model,
            sample.answer_tokens,
            is_vllm=is_vllm,
            priority=place.priority,
        )
        try:
            with bill.of(place.price, sample.prompt_tokens_estimate, sample.answer_tokens) as asked:
                heard = asked.heard = await self._ask(place.url, body, _MODEL_TIME_LIMIT_S)
        except NoAnswer as error:
            raise NoAnswer(f"{place.url}: {error}", by_question=error.by_question) from None
        finally:
            place.lease.end()
        return heard

    async def _judged(
        self, sample: Sample, small: str, large: str, bill: Bill
    ) -> tuple[bool, bool]:
        """Whether small's answer and large's are good enough. Which one is A is drawn."""
        settings = self.settings.judge
        small_is_a = self._draw() < 0.5
        a, b = (small, large) if small_is_a else (large, small)
        messages = judge.question(sample.conversation, a, b)
        body = plain_chat(settings.model, messages, MOST_VERDICT_TOKENS)
        prompt = sample.prompt_tokens_estimate + 2 * sample.answer_tokens
        try:
            with bill.of(settings.price, prompt, MOST_VERDICT_TOKENS) as asked:
                heard = asked.heard = await self._ask(
                    settings.url, body, settings.time_limit, self._headers
                )
        except NoAnswer as error:
            raise _Lost("judge_failed", f"{settings.url}: {error}") from None
        said = judge.verdict(heard.text)
        if said is None:
            raise _Lost("unclear", f"{settings.url}: it said neither yes nor no as asked for")
        return said if small_is_a else (said[1], said[0])

    async def _ask(
        self, url: str, body: bytes, time_limit_s: float, headers: dict[str, str] | None = None
    ) -> Said:
        if self._http is None:
            self._http = session()
        return await ask(self._http, url, body, time_limit_s, headers)

    def _end(self, places: list[_Place], reserved_usd: float, spent_usd: float) -> None:
        for place in places:
            place.lease.end()
        self._spend.settle(reserved_usd, spent_usd, self._now_s())
        self._cost_usd[()] += spent_usd

    def _has_failed(self, lost: _Lost) -> None:
        rest_s = self._rest.failed(asyncio.get_running_loop().time())
        if rest_s:
            _log.warning(
                "samples for routing.learning fail (%s: %s): none is taken for %g s",
                lost.word,
                lost.why,
                rest_s,
            )
