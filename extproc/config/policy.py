"""The policy block, `forebay`: its keys, their meaning, units and defaults."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self, cast

from pydantic import ConfigDict, Field, model_validator

from extproc.admission import MOST_WAITING
from extproc.config.caching import CacheConfig, CacheScope, TenantCacheConfig
from extproc.config.limiting import LimitsConfig, TenantLimitsConfig
from extproc.config.tree import mapping
from extproc.config.values import (
    Address,
    Block,
    DurationS,
    HeaderName,
    Mark,
    Name,
    SizeBytes,
    Url,
    Usd,
)


class ConfigError(Exception):
    """The config cannot be used; the message names the file and, a line each, what is wrong."""


class PriceConfig(Block):
    """US dollars per million tokens."""

    input: Usd
    cached_input: Usd
    """Of the input, what the prefix cache had. Left out: as input."""
    output: Usd

    @model_validator(mode="before")
    @classmethod
    def _cached_as_input(cls, given: object) -> object:
        block = mapping(given)
        return {"cached_input": block["input"], **block} if "input" in block else given

    @model_validator(mode="after")
    def _cached_is_cheaper(self) -> Self:
        if self.cached_input > self.input:
            raise ValueError(
                f"cached_input ({self.cached_input:g}) must not be above input ({self.input:g})"
            )
        return self


class PoolConfig(Block):
    """The replicas of one model behind one Envoy cluster of the same name."""

    model: Name
    """What the servers of this pool call the model; clients may ask for it by this name."""
    slots: int = Field(gt=0, le=100_000)
    """How many sequences may be in each of these servers at once."""
    context: int | None = Field(default=None, gt=0)
    """Tokens that a prompt and its answer may take together. None: no limit known."""
    server: Literal["vllm", "other"] = "vllm"
    """Only a vllm server is asked for its health and asked to stop."""
    partial_by: Literal["ask", "guard"]
    """How an answer ends at its deadline. ask: the server is asked to end it, which costs nothing
    per token; only vLLM can. guard: streamed answers pass by way of the processor, which ends them
    itself. Left out: ask for vllm, guard for other."""
    endpoints: tuple[Url, ...] = ()
    """The replicas. Left out in a bootstrap: read from the Envoy cluster."""
    overflow_only: bool = False
    """Never chosen first by a rule; only as a later tier, or by its name."""
    price: PriceConfig | None = None
    """None: its tokens are counted, but have no cost."""

    @model_validator(mode="before")
    @classmethod
    def _partial_as_the_server_can(cls, given: object) -> object:
        block = mapping(given)
        by = "guard" if block.get("server") == "other" else "ask"
        return {"partial_by": by, **block}

    @property
    def all_slots(self) -> int:
        """When every replica is up."""
        return self.slots * max(len(self.endpoints), 1)

    @model_validator(mode="after")
    def _only_vllm_can_be_asked(self) -> Self:
        if self.partial_by == "ask" and self.server == "other":
            raise ValueError("partial_by: ask works with vllm servers only; write guard")
        return self


class SloConfig(Block):
    ttft: DurationS = 1.0
    """From a request's arrival to the first token of its answer."""
    tpot: DurationS = 0.05
    """Time per output token after the first. Nothing is decided by it; `forebay doctor` judges."""
    percentile: float = Field(default=0.99, ge=0.5, lt=1)
    """The share that is to hold them: for `auto` marks of the requests that have to wait at all,
    for the doctor of all answers."""


class AdmissionConfig(Block):
    max_wait: DurationS = 10.0
    """Longest wait in the queue, in seconds; after it 429 `queue_timeout`."""
    high_water: Mark = "auto"
    """Waiting requests per pool at which shedding starts. 0: nobody waits. auto: as many as can
    still hold `slo`, by the measured service times."""
    low_water: Mark = "auto"
    """Waiting requests per pool at which shedding ends. auto: half of high_water."""
    hard_water: Mark = "auto"
    """Waiting requests per pool from which on no body is read. auto: high_water plus the slots."""
    dwell: DurationS | None = None
    """How long shedding lasts at least. None: until the low mark is reached."""
    queue_bytes: SizeBytes = 64 * 1024 * 1024
    """What all requests that wait for a pool may hold of this processor's memory."""
    slo: SloConfig = SloConfig()
    on_overload: tuple[Literal["cached", "smaller", "shorter", "shed"], ...] = (
        "cached",
        "smaller",
        "shed",
    )
    """What to do for a request that a pool sheds, in this order. cached: an expired answer (see
    cache.exact.stale). smaller: the small pool, where the choice was ours. shorter: answers that
    had to wait get `shorter_tokens` at most. shed: 429; the last."""
    shorter_tokens: int = Field(default=256, gt=0)

    @property
    def most_waiting(self) -> int:
        """Of each pool, at the high mark."""
        return MOST_WAITING if self.high_water == "auto" else self.high_water

    @model_validator(mode="after")
    def _marks_in_order(self) -> Self:
        high, low, hard = self.high_water, self.low_water, self.hard_water
        if low != "auto" and high != "auto" and low > high:
            raise ValueError(f"low_water ({low}) must not be above high_water ({high})")
        if hard != "auto" and high != "auto" and hard < high:
            raise ValueError(f"hard_water ({hard}) must not be below high_water ({high})")
        return self

    @model_validator(mode="after")
    def _shed_is_last(self) -> Self:
        if "shed" in self.on_overload[:-1] or len(set(self.on_overload)) < len(self.on_overload):
            raise ValueError("on_overload: name each way once, and shed last")
        return self


class RoutingConfig(Block):
    auto_model: Name = "auto"
    """The model name by which a client leaves the choice to the rules."""
    small: Name
    """The pool for the easy majority. Left out: the one called small, or else the first."""
    large: Name
    """The pool for what the rules find hard, and for long prompts. Left out: the one called large,
    or else the last."""
    fallback: dict[Name, tuple[Name, ...]] = Field(default={})
    """Per pool: the pools to try after it, in order. A pool may stand twice to be tried twice."""


class Expiry(NamedTuple):
    """When the answer to a request has to have ended, and how."""

    deadline_s: float
    grace_s: float
    """After the deadline, until Envoy cuts. 0 where nothing is to be ended well."""
    partial: bool

    @property
    def last_s(self) -> float:
        return self.deadline_s + self.grace_s


class ExpiryConfig(Block):
    """Left out: as for all others."""

    deadline: DurationS | None = None
    on_expiry: Literal["partial", "cut"] | None = None


class ResponseConfig(Block):
    deadline: DurationS = 120.0
    """From the arrival of a request to the end of its answer."""
    grace: DurationS = 2.0
    """How long after the deadline the server may take to end the answer before Envoy cuts it."""
    stall: DurationS = 30.0
    """How long a guarded stream may be silent, before its first token too, before it is ended."""
    on_expiry: Literal["partial", "cut"] = "partial"
    """partial: ask vllm servers to end the answer well-formed at the deadline; cut: only cut it."""
    paths: dict[Literal["/v1/chat/completions", "/v1/completions"], ExpiryConfig] = Field(
        default={}
    )
    """Other deadlines and ways for one endpoint; a tenant's own go before."""


class TenantConfig(ExpiryConfig, TenantLimitsConfig):
    model_config = ConfigDict(validate_by_name=False, validate_by_alias=True)

    request_class: Literal["interactive", "batch"] = Field(default="interactive", alias="class")
    """batch: sheds at half of the marks, and waits behind interactive requests."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """The tenant's share of a pool's tokens beside others of its class, when there is a queue."""
    pools: tuple[Name, ...] | None = None
    """The pools that this tenant may use. None: all."""
    cache: TenantCacheConfig = TenantCacheConfig()


class CostsConfig(Block):
    batch_price: float = Field(default=1.0, ge=0, le=1)
    """What requests of class batch cost, as a share of the price."""


class Config(Block):
    """The whole policy block, `forebay`."""

    tenant_header: HeaderName = "x-tenant-id"
    user_header: HeaderName = "x-user-id"
    """Both from a filter that is trusted; without the latter a cache of scope user is not used."""
    admin: Address = "127.0.0.1:9902"
    """host:port of /metrics, /healthz, /readyz, /status, /costs and /cache. Whoever reaches it may
    purge the caches: keep it where only operators and Prometheus do."""
    drain: DurationS | None = None
    """How long running exchanges may take after SIGTERM. Left out: deadline + grace, so that each
    can still be ended well-formed."""
    pools: dict[Name, PoolConfig] = Field(min_length=1)
    admission: AdmissionConfig = AdmissionConfig()
    routing: RoutingConfig
    response: ResponseConfig = ResponseConfig()
    cache: CacheConfig = CacheConfig()
    limits: LimitsConfig = LimitsConfig()
    tenants: dict[Name, TenantConfig] = Field(default={})
    """Policy by tenant; `default` is for every tenant not named here."""
    features: tuple[Name, ...] = ()
    """What clients may say in x-feature, for the costs by feature; all else counts as `other`."""
    costs: CostsConfig = CostsConfig()
    unknown_tenant: Literal["default", "refuse"] = "default"
    """What a tenant without a policy of its own gets: that of `default`, or 403."""

    @property
    def scopes(self) -> set[CacheScope]:
        """Of the cache, as they are in use for some tenant."""
        if self.cache.exact is None:
            return set()
        blocks = [tenant.cache for tenant in self.tenants.values()]
        if "default" not in self.tenants and self.unknown_tenant == "default":
            blocks.append(TenantCacheConfig())
        exact, alike = self.cache.exact, self.cache.semantic
        found: set[CacheScope] = {block.scope or exact.scope for block in blocks if block.exact}
        if alike and any(block.exact and block.semantic for block in blocks):
            found.add(alike.scope)
        return found

    @property
    def drain_s(self) -> float:
        return self.drain or self.longest_s

    def expiry(self, tenant: str, path: str) -> Expiry:
        """For a tenant as it is named here (`default` for all others)."""
        deadline_s, way = self.response.deadline, self.response.on_expiry
        nothing = ExpiryConfig()
        of_path = next((own for of, own in self.response.paths.items() if of == path), nothing)
        for own in (of_path, self.tenants.get(tenant, nothing)):
            deadline_s, way = own.deadline or deadline_s, own.on_expiry or way
        partial = way == "partial"
        return Expiry(deadline_s, self.response.grace if partial else 0.0, partial)

    @property
    def expiries(self) -> list[Expiry]:
        """All that there are."""
        paths = ("", *self.response.paths)
        return [self.expiry(tenant, path) for tenant in ("", *self.tenants) for path in paths]

    @property
    def longest_s(self) -> float:
        """From a request's arrival to the last moment that its answer can have."""
        return max(expiry.last_s for expiry in self.expiries)

    @model_validator(mode="before")
    @classmethod
    def _small_and_large(cls, given: object) -> object:
        """Where the routing does not name them, by the pools' names or their order."""
        block = mapping(given)
        pools = list(mapping(block.get("pools")))
        routing = block.get("routing", {})
        if not isinstance(routing, Mapping):
            return given
        # Without pools, which is told of itself, any names will do.
        small = "small" if "small" in pools or not pools else pools[0]
        large = "large" if "large" in pools or not pools else pools[-1]
        chosen = {"small": small, "large": large, **mapping(cast(object, routing))}
        return {**block, "routing": chosen}
