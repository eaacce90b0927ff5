"""What the policy says of limits: `limits`, and of each tenant `requests_per_minute` and beside."""

from typing import Literal, TypeAlias

from pydantic import Field

from extproc.config.caching import MemoryOrBlock, RedisConfig
from extproc.config.values import Block, DurationS

WhenAway: TypeAlias = Literal["local", "allow", "refuse"]


class LimitsRedisConfig(RedisConfig):
    """As `cache.store.redis`, and the same password from the environment. Names in it are hashed by
    the secret of the cache (`cache.secret_file`)."""

    time_limit: DurationS = 0.05
    """How long a request waits for Redis at most; then `when_away` says what becomes of it."""


class LimitsStoreConfig(MemoryOrBlock):
    """Written as `memory`, or as `{redis: {url: ...}}`."""

    redis: LimitsRedisConfig | None = None
    """None: each processor enforces the limits by itself."""


class LimitsConfig(Block):
    store: LimitsStoreConfig = LimitsStoreConfig()
    """Where it is kept what tenants have used."""
    when_away: WhenAway = "local"
    """What becomes of a request while Redis does not answer. local: each processor grants its
    share, by the number of processors seen last. allow: all are granted. refuse: 503."""


class BudgetConfig(Block):
    usd: float = Field(gt=0, le=1_000_000, allow_inf_nan=False)
    """By the prices of the pools."""
    per: Literal["day", "month"] = "day"
    """By UTC."""
    soft: float = Field(default=0.8, gt=0, le=1)
    """The share of `usd` from which on requests for the auto_model go to the small pool."""
    when_spent: Literal["refuse", "stop"] = "refuse"
    """refuse: new requests get 429 `budget_exceeded`. stop: and running streams are ended."""


class TenantLimitsConfig(Block):
    """Left out: no limit. Of `default` each tenant that is not named has its own."""

    requests_per_minute: int | None = Field(default=None, gt=0, le=1_000_000_000)
    tokens_per_minute: int | None = Field(default=None, gt=0, le=1_000_000_000_000)
    """Of prompt and answer together: estimated when a request is granted, corrected later."""
    burst: DurationS = 10.0
    """How much may be used at once: what these rates are in so long, but at least one request."""
    concurrent_requests: int | None = Field(default=None, gt=0, le=1_000_000)
    """At once, waiting ones included."""
    budget: BudgetConfig | None = None
