"""From the policy to the caches and limits that it describes. Redis' client, and what the semantic
cache needs, are loaded only where they are used."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from extproc.cache import Caches, ExactCache, Secret, Store, Times
from extproc.cache.memory import MemoryStore
from extproc.config import (
    CacheConfig,
    Config,
    ConfigError,
    EmbedderConfig,
    ExactCacheConfig,
    RedisConfig,
    SemanticCacheConfig,
    credentials,
    limits_credentials,
)
from extproc.extras import install
from extproc.limits import Books, Limits

if TYPE_CHECKING:
    from extproc.cache.partitions import MemoryPartitions, Partitions
    from extproc.cache.semantic.cache import SemanticCache
    from extproc.embedders import Embedder
    from extproc.redis_link import Link

EMBEDDER_KEY = "FOREBAY_EMBEDDER_KEY"

_Clock = Callable[[], float]


class _Purpose(NamedTuple):
    block: str
    """Of the config, where its Redis is named."""
    while_away: str
    probe_s: float


_OF_CACHES = _Purpose("forebay.cache.store.redis", "caches miss", 2.0)
# Sooner: until all processors have Redis back, those that have it grant what is the others' share.
_OF_LIMITS = _Purpose(
    "forebay.limits.store.redis", "limits are as forebay.limits.when_away says", 0.5
)


def make_caches(config: CacheConfig, clock: _Clock) -> Caches | None:
    """None: off. Reads the secrets; ConfigError if they do not do. Within a running event loop."""
    if config.exact is None:
        return None
    warm_up(config)
    read = credentials(config)
    secret, redis, alike = Secret(read.secret), config.store.redis, config.semantic
    link = None if redis is None else _link(redis, read.redis_password, _OF_CACHES)
    store = MemoryStore(config.exact.max_bytes, clock) if link is None else _shared(link, secret)
    exact = ExactCache(store, secret, _times(config.exact))
    if alike is None:
        return Caches(exact)

    from extproc.cache.partitions import MemoryPartitions

    now = clock if link is None else time.time  # which all processors have
    here = MemoryPartitions(alike.max_entries, alike.max_bytes, now)
    if isinstance(store, MemoryStore):
        store.dropped = here.drop
    questions = here if link is None else _shared_questions(link, secret, here)
    return Caches(exact, _semantic(alike, secret, questions, now))


def changed_caches(
    caches: Caches | None, old: CacheConfig, new: CacheConfig, clock: _Clock
) -> Caches | None:
    """The same ones with other numbers, or where their place, their secret or what is compared is
    another, new ones: then the old ones have to be closed."""
    if caches is None or new.exact is None:
        return make_caches(new, clock)
    if (old.store, old.secret_file, old.semantic) != (new.store, new.secret_file, new.semantic):
        return make_caches(new, clock)
    caches.exact.times = _times(new.exact)
    if isinstance(caches.exact.store, MemoryStore):
        caches.exact.store.configure(new.exact.max_bytes)
    return caches


def make_limits(config: Config, clock: _Clock) -> Limits:
    """Reads the secrets where Redis is asked; ConfigError if they do not do."""
    redis, here = config.limits.store.redis, Books(clock, time.time)
    if redis is None:
        return Limits(here)
    read = limits_credentials(config.cache, redis)
    from extproc.limits.redis_store import RedisStore
    from extproc.limits.shared import SharedStore

    secret = Secret(read.secret)
    link = _link(redis, read.redis_password, _OF_LIMITS)

    def hashed(tenant_id: str) -> bytes:
        return secret.digest(b"limits", tenant_id.encode()).hex().encode()

    store = RedisStore(link, hashed)
    return Limits(here, SharedStore(store, here, clock, os.urandom(8).hex()))


def changed_limits(limits: Limits, old: Config, new: Config, clock: _Clock) -> Limits:
    """The same ones, with what was used, unless their place or their secret is another."""
    moved = old.limits.store != new.limits.store
    hidden = new.limits.store.redis and old.cache.secret_file != new.cache.secret_file
    return make_limits(new, clock) if moved or hidden else limits


def warm_up(config: CacheConfig) -> None:
    """Load what the semantic cache needs, packages and word lists: half a second, which must not
    pass on the event loop of a gateway that serves. ConfigError: a package is missing."""
    if config.semantic is None:
        return
    try:
        from extproc.cache.semantic import cache, gate
        from extproc.cache.semantic.stateless import why_stateful
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"forebay.cache.semantic: the package {error.name} is missing: {install('semantic')}"
        ) from error
    assert cache
    gate.parse("Are the word lists loaded?")
    why_stateful("Are the numbers loaded?")


def _times(exact: ExactCacheConfig) -> Times:
    return Times(exact.ttl, exact.stale, exact.ttl_jitter)


def _semantic(
    config: SemanticCacheConfig, secret: Secret, partitions: "Partitions", clock: _Clock
) -> "SemanticCache":
    from extproc.cache.semantic.budget import FalseHitBudget
    from extproc.cache.semantic.cache import SemanticCache

    embedder = _embedder(config.embedder)
    embedder.start()
    return SemanticCache(
        secret,
        embedder,
        partitions,
        FalseHitBudget(config.false_hit_budget, share=config.check_share, first=config.check_first),
        similarity=config.similarity,
        ttl_s=config.ttl,
        clock=clock,
    )


def _embedder(config: EmbedderConfig) -> "Embedder":
    from extproc.credential import Credential
    from extproc.embedders.onnx import ModelFiles, OnnxEmbedder
    from extproc.embedders.openai_endpoint import OpenAIEmbedder

    try:
        if config.url is None or config.model is None:
            files = ModelFiles.of_folder(config.folder) if config.folder else ModelFiles.minilm()
            return OnnxEmbedder(files, time_limit_s=config.time_limit, most_waiting=config.at_once)
        credential = None
        if config.key_file:
            credential = Credential.from_file(config.key_file)
        elif EMBEDDER_KEY in os.environ:
            credential = Credential.from_environment(EMBEDDER_KEY)
    except ValueError as error:
        raise ConfigError(f"forebay.cache.semantic.embedder: {error}") from error
    return OpenAIEmbedder(
        config.url,
        config.model,
        credential=credential,
        time_limit_s=config.time_limit,
        most_in_flight=config.at_once,
    )


def _shared(link: "Link", secret: Secret) -> Store:
    from extproc.cache.redis_store import RedisStore

    return RedisStore(link, secret)


def _shared_questions(link: "Link", secret: Secret, here: "MemoryPartitions") -> "Partitions":
    from extproc.cache.redis_partitions import RedisPartitions

    return RedisPartitions(link, secret, here)


def _link(redis: RedisConfig, password: str | None, of: _Purpose) -> "Link":
    from extproc.redis_link import Link, Settings

    return Link(
        Settings(
            url=redis.url,
            username=redis.username,
            password=password,
            ca_file=redis.ca_file,
            cert_file=redis.cert_file,
            key_file=redis.key_file,
            cluster=redis.cluster,
            connections=redis.connections,
            time_limit_s=redis.time_limit,
            probe_s=of.probe_s,
            block=of.block,
            while_away=of.while_away,
        )
    )
