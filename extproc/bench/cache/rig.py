"""The caches as an exchange has them, with vectors that are known. Decides nothing itself: each
question goes the way that a request's body goes, each answer the way of a model's. Only the exact
cache is passed by where questions are compared, or equal ones would never come that far."""

import time
from typing import NamedTuple

import orjson

from extproc.bench.cache.vectors import Known
from extproc.cache import Caches, ExactCache, Query, Secret, Times, scope_of
from extproc.cache.caches import Found
from extproc.cache.memory import MemoryStore
from extproc.cache.partitions import MemoryPartitions
from extproc.cache.semantic.budget import FalseHitBudget
from extproc.cache.semantic.cache import Looked, SemanticCache
from extproc.cache.store import Store
from extproc.config import ExactCacheConfig, SemanticCacheConfig
from extproc.openai import CHAT, parse

DEFAULTS = SemanticCacheConfig()
SECRET = Secret(b"of a benchmark, no secret")
_MODEL = "m"


class Decided(NamedTuple):
    looked: Looked
    cpu_us: float

    @property
    def answer(self) -> str | None:
        """What is given; None: nothing."""
        if self.looked.outcome != "hit":
            return None
        assert self.looked.found is not None
        return self.looked.found.hit.answer.text


class Rig:
    """A threshold, TTLs and limits as they are by default; no hit is kept back to be checked."""

    def __init__(self, known: Known, max_entries: int = DEFAULTS.max_entries) -> None:
        exact = ExactCacheConfig()
        store = MemoryStore(exact.max_bytes, time.monotonic)
        self.partitions = MemoryPartitions(max_entries, DEFAULTS.max_bytes, time.monotonic)
        store.dropped = self.partitions.drop
        self.semantic = SemanticCache(
            SECRET,
            known,
            self.partitions,
            FalseHitBudget(DEFAULTS.false_hit_budget, share=0.0, first=0),
            similarity=DEFAULTS.similarity,
            ttl_s=DEFAULTS.ttl,
            clock=time.monotonic,
        )
        self.caches = Caches(exact_cache(store), self.semantic)

    async def store(self, text: str, answer: str, user: str) -> bool:
        """As the model's answer to it. Whether other words may find it."""
        found = await self.caches.look_up(query(text, user))
        if found.fill is None:  # it was there
            return False
        fill(found, answer)
        return found.looked is not None and found.looked.asked is not None

    async def ask(self, text: str, user: str) -> Decided:
        asks = query(text, user)
        exact = await self.caches.exact.look(asks)
        assert exact.place is not None
        began = time.thread_time()
        looked = await self.semantic.look(
            scope=asks.alike_scope,
            place=exact.place,
            pool=asks.served_by,
            request=asks.request,
            body=asks.body,
            policy=exact.policy,
        )
        took_us = (time.thread_time() - began) * 1e6
        return Decided(self.semantic.use(looked), took_us)


def exact_cache(store: Store) -> ExactCache:
    exact = ExactCacheConfig()
    return ExactCache(store, SECRET, Times(exact.ttl, exact.stale))


def query(text: str, user: str) -> Query:
    body = orjson.dumps(
        {"model": _MODEL, "temperature": 0, "messages": [{"role": "user", "content": text}]}
    )
    scope = scope_of("user", "bench", user)
    return Query(
        scope=scope,
        alike_scope=scope,
        wanted="deterministic",
        pool="small",
        model=_MODEL,
        request=parse(CHAT, body),
        body=body,
        cache_control="",
    )


def fill(found: Found, answer: str) -> None:
    """The model answers."""
    assert found.fill is not None
    found.fill.feed(
        orjson.dumps(
            {
                "object": "chat.completion",
                "model": _MODEL,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": answer},
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1},
            }
        )
    )
    assert found.fill.end()
