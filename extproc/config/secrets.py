"""What must not stand in the config file: read from the files that it names, or the environment.

A credential is in no message, no log and no repr.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from extproc.config.caching import CacheConfig, RedisConfig
from extproc.config.files import read_bytes
from extproc.config.policy import ConfigError

CACHE_SECRET = "FOREBAY_CACHE_SECRET"
REDIS_PASSWORD = "FOREBAY_REDIS_PASSWORD"
_LEAST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Credentials:
    secret: bytes = field(repr=False)
    redis_password: str | None = field(repr=False)


def credentials(cache: CacheConfig) -> Credentials:
    """What the caches need. ConfigError: a file cannot be read, or with Redis the secret that its
    processors share is missing or too short."""
    return _credentials(cache, cache.store.redis, "forebay.cache.store.redis")


def limits_credentials(cache: CacheConfig, redis: RedisConfig) -> Credentials:
    """What limits in Redis need: a secret of the caches too, by which names are hashed."""
    return _credentials(cache, redis, "forebay.limits.store.redis")


def _credentials(cache: CacheConfig, redis: RedisConfig | None, here: str) -> Credentials:
    secret = shared_secret(cache)
    if redis is None:
        return Credentials(secret or os.urandom(32), None)
    if secret is None:
        raise ConfigError(
            "forebay.cache.secret_file: missing; all processors that share a Redis need the same "
            f"secret. Name a file, or set {CACHE_SECRET}: openssl rand -base64 32"
        )
    password = _read(redis.password_file, f"{here}.password_file", REDIS_PASSWORD)
    for name in ("ca_file", "cert_file", "key_file"):
        _read(getattr(redis, name), f"{here}.{name}", "")  # redis-py would tell with each request
    try:
        text = None if password is None else password.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{here}.password_file: not UTF-8") from error
    return Credentials(secret, text)


def shared_secret(cache: CacheConfig) -> bytes | None:
    """What all processors of a gateway have alike; None: nobody gave them one. ConfigError: it
    cannot be read, or is too short."""
    secret = _read(cache.secret_file, "forebay.cache.secret_file", CACHE_SECRET)
    if secret is not None and len(secret) < _LEAST_BYTES:
        where = "forebay.cache.secret_file" if cache.secret_file else CACHE_SECRET
        raise ConfigError(
            f"{where}: {len(secret)} bytes; write at least {_LEAST_BYTES}: openssl rand -base64 32"
        )
    return secret


def _read(path: Path | None, where: str, variable: str) -> bytes | None:
    """A file goes before the environment. Without the line end that editors leave; None: neither,
    or an empty variable."""
    if path is None:
        return os.environ.get(variable, "").encode("utf-8", "surrogateescape").strip() or None
    text = read_bytes(path, where).strip()
    if not text:
        raise ConfigError(f"{where}: {path} is empty")
    return text
