"""From the policy to the caches it describes. Redis' client is loaded only where it is used."""

from collections.abc import Callable

from extproc.cache import ExactCache, Secret, Store, Times
from extproc.cache.memory import MemoryStore
from extproc.config import CacheConfig, ExactCacheConfig, RedisConfig, credentials


def make_cache(config: CacheConfig, clock: Callable[[], float]) -> ExactCache | None:
    """None: off. Reads the secrets; ConfigError if they do not do. Within a running event loop."""
    if config.exact is None:
        return None
    read = credentials(config)
    secret, redis = Secret(read.secret), config.store.redis
    store: Store
    if redis is None:
        store = MemoryStore(config.exact.max_bytes, clock)
    else:
        store = _redis_store(redis, secret, read.redis_password)
    return ExactCache(store, secret, _times(config.exact))


def changed_cache(
    cache: ExactCache | None, old: CacheConfig, new: CacheConfig, clock: Callable[[], float]
) -> ExactCache | None:
    """The same one with other numbers, or where its place or its secret is another, a new one:
    then the old one's store has to be closed."""
    if cache is None or new.exact is None:
        return make_cache(new, clock)
    if (old.store, old.secret_file) != (new.store, new.secret_file):
        return make_cache(new, clock)
    cache.times = _times(new.exact)
    if isinstance(cache.store, MemoryStore):
        cache.store.configure(new.exact.max_bytes)
    return cache


def _times(exact: ExactCacheConfig) -> Times:
    return Times(exact.ttl, exact.stale, exact.ttl_jitter)


def _redis_store(redis: RedisConfig, secret: Secret, password: str | None) -> Store:
    from extproc.cache.redis_link import Link, Settings
    from extproc.cache.redis_store import RedisStore

    settings = Settings(
        url=redis.url,
        username=redis.username,
        password=password,
        ca_file=redis.ca_file,
        cert_file=redis.cert_file,
        key_file=redis.key_file,
        cluster=redis.cluster,
        connections=redis.connections,
        time_limit_s=redis.time_limit,
    )
    return RedisStore(Link(settings), secret)
