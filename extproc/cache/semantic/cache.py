"""The semantic cache: the answer to a question that asks the same in other words, or none.

Fail-closed, in this order: a request that is fit, a text that the gate can read and that depends on
nothing but itself, candidates by similarity, and for each the gate. The similarity alone never
decides. Some of what would be hits are answered by the model instead and compared: see budget.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias, cast

import orjson

from extproc.cache.exact import Hit, Place
from extproc.cache.key import Secret, has_long_number
from extproc.cache.partitions import Candidate, Item, PartitionKey, Partitions, Vector
from extproc.cache.request_policy import CachePolicy
from extproc.cache.scope import Scope
from extproc.cache.semantic.agree import answers_agree
from extproc.cache.semantic.budget import FalseHitBudget
from extproc.cache.semantic.eligible import Unfit, question_of
from extproc.cache.semantic.gate import Parsed, Refused, parse, same_question
from extproc.cache.semantic.stateless import why_stateful
from extproc.embedders import Embedder, EmbedderUnavailable
from extproc.openai import Answer, Request, UnreadAnswer

_log = logging.getLogger(__name__)

Outcome: TypeAlias = Literal[
    "hit",
    "checked",
    "off",
    "unfit",
    "unreadable",
    "stateful",
    "no_vector",
    "no_candidate",
    "refused",
]

MOST_CANDIDATES = 5
_MOST_CHECKS = 16  # at once


class Asked(NamedTuple):
    """A question that may be stored with its answer."""

    partition: PartitionKey
    text: str
    vector: Vector
    parsed: Parsed


class Judged(NamedTuple):
    """`verdict`: of the gate, or why a question that asks the same does not help. `why`: for a
    person."""

    similarity: float
    verdict: Literal["same", "other", "gone", "too_old"]
    why: str
    id: bytes


class SemanticHit(NamedTuple):
    hit: Hit
    similarity: float


class Looked(NamedTuple):
    """`why`: for a person. `found`: a hit, also one that is to be checked and not given."""

    outcome: Outcome
    why: str
    asked: Asked | None = None
    judged: tuple[Judged, ...] = ()
    found: SemanticHit | None = None


class SemanticCache:
    """Owns the embedder, the questions kept, and the checks under way."""

    def __init__(
        self,
        secret: Secret,
        embedder: Embedder,
        partitions: Partitions,
        budget: FalseHitBudget,
        *,
        similarity: float,
        ttl_s: float,
        clock: Callable[[], float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`clock`: the one by which `partitions` tells what has expired. `draw`: from 0 to 1, for
        what is checked."""
        self._draw = draw
        self.budget = budget
        self.partitions = partitions
        self.similarity = similarity
        self._ttl_s = ttl_s
        self._secret = secret
        self.embedder = embedder
        self._clock = clock
        self._checks: set[asyncio.Task[None]] = set()
        self.unchecked = 0
        """Checks that could not be made: too many at once, or an answer that was not whole."""

    async def look(
        self,
        *,
        scope: Scope | None,
        place: Place,
        pool: str,
        request: Request,
        body: bytes,
        policy: CachePolicy,
        judge_all: bool = False,
    ) -> Looked:
        """Changes nothing; see `use`. `scope`: within whom questions are compared; None: nobody
        knows. `place`: of the exact cache. `pool`: whose answer it would be, and what it serves.
        `judge_all`: go on to the other candidates when one was found to ask the same."""
        if scope is None:
            return Looked("unfit", "no user id came with it, so nobody knows whose answer it is")
        if self.budget.state(scope.tenant, self._clock()) == "off":
            return Looked("off", "too many hits of this tenant were false: see forebay cache stats")
        question = question_of(request.path, request.members, request.sequences)
        if isinstance(question, Unfit):
            return Looked("unfit", question.why)
        if has_long_number(body):
            return Looked("unfit", "it has a number of 15 digits or more")
        parsed = parse(question.text)
        if isinstance(parsed, Refused):
            return Looked("unreadable", parsed.why)
        try:
            vector = await self.embedder.embed(question.text)
        except EmbedderUnavailable as error:
            return Looked("no_vector", str(error))
        if why := why_stateful(question.text, vector, self.embedder.model):
            return Looked("stateful", why)
        rest = orjson.dumps(question.rest, option=orjson.OPT_SORT_KEYS)
        of = (pool.encode(), request.path.encode(), self.embedder.model.encode(), rest)
        epoch = place.epoch
        if scope != place.scope:
            epoch = (await place.store.get(scope, place.key)).epoch
        partition = PartitionKey(scope, self._secret.digest(b"question", *of), epoch)
        asked = Asked(partition, question.text, vector, parsed)
        if not policy.may_read:
            return Looked("unfit", "the client wants a new answer", asked)
        candidates = await self.partitions.nearest(
            partition, vector, self.similarity, MOST_CANDIDATES
        )
        return await self._judge(asked, candidates, place, policy, judge_all)

    async def _judge(
        self,
        asked: Asked,
        candidates: list[Candidate],
        place: Place,
        policy: CachePolicy,
        judge_all: bool,
    ) -> Looked:
        judged: list[Judged] = []
        found: SemanticHit | None = None
        found_why = ""
        for similarity, item in candidates:
            stored = _parsed(item)
            if isinstance(stored, Refused):
                judged.append(Judged(similarity, "other", stored.why, item.id))
                continue
            verdict = same_question(asked.parsed, stored)
            if not verdict.same:
                judged.append(Judged(similarity, "other", verdict.why, item.id))
                continue
            entry = (await place.store.get(place.scope, item.id)).entry
            if entry is None or entry.ttl_s <= 0:
                why = "it asks the same, but its answer is gone"
                judged.append(Judged(similarity, "gone", why, item.id))
                continue
            if not policy.takes(entry.age_s):
                why = "it asks the same, but its answer is older than the client takes"
                judged.append(Judged(similarity, "too_old", why, item.id))
                continue
            judged.append(Judged(similarity, "same", verdict.why, item.id))
            if found is None:
                found, found_why = SemanticHit(Hit(*entry), similarity), verdict.why
            if not judge_all:
                break
        if found is not None:
            return Looked("hit", found_why, asked, tuple(judged), found)
        if not judged:
            return Looked("no_candidate", "no question that was stored is similar", asked)
        return Looked("refused", judged[0].why, asked, tuple(judged))

    def use(self, looked: Looked) -> Looked:
        """What follows from a look: questions whose answers are gone are forgotten, and chance
        takes some of the hits to be checked."""
        for judged in looked.judged:
            if judged.verdict == "gone":
                self.partitions.drop(judged.id)
        if looked.outcome == "hit":
            assert looked.asked is not None
            if self.budget.checks(looked.asked.partition.scope.tenant, self._draw()):
                return looked._replace(outcome="checked")
        return looked

    def remember(self, asked: Asked, key: bytes, ttl_s: float) -> None:
        """The answer to it is stored under that exact key for so long."""
        item = Item(key, asked.text, self._clock() + min(ttl_s, self._ttl_s))
        item.parsed = asked.parsed
        self.partitions.add(asked.partition, item, asked.vector)

    def check(self, asked: Asked, given: Answer, fresh: Answer | UnreadAnswer) -> None:
        """Compare what would have been given with what the model says. Never waits."""
        if len(self._checks) >= _MOST_CHECKS:
            self.unchecked += 1
            return
        task = asyncio.create_task(self._compare(asked.partition.scope.tenant, given, fresh))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _compare(self, tenant: str, given: Answer, fresh: Answer | UnreadAnswer) -> None:
        new = fresh.read() if isinstance(fresh, UnreadAnswer) else fresh
        if new is None:
            self.unchecked += 1
            return
        texts = given.text, new.text
        similarity = None
        with suppress(EmbedderUnavailable):  # a long answer has no vector: then the texts speak
            first, second = [await self.embedder.embed(text) for text in texts]
            similarity = float(first @ second)
        agree, why = answers_agree(*texts, similarity)
        if self.budget.told(tenant, agree, self._clock()):
            checked, false = self.budget.counts(tenant)
            _log.error(
                "the semantic cache is off for a tenant: of its %d checked hits %d were false, the "
                "last by %s; see forebay cache stats",
                checked,
                false,
                why,
            )

    async def close(self) -> None:
        for task in self._checks:
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)
        await self.embedder.close()


def _parsed(item: Item) -> Parsed | Refused:
    """Of a stored question; once, as long as it is kept here."""
    if item.parsed is None:
        item.parsed = parse(item.prompt)
    return cast("Parsed | Refused", item.parsed)
