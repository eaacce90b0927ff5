"""The policy block, `forebay`: its keys, their meaning, units and defaults."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self, cast

from pydantic import ConfigDict, Field, model_validator

from extproc.admission import MOST_WAITING
from extproc.config.caching import CacheConfig, CacheScope, TenantCacheConfig
from extproc.config.difficulty import DifficultyConfig, LearningConfig
from extproc.config.limiting import LimitsConfig, TenantLimitsConfig
from extproc.config.price import PriceConfig
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
)

# Beyond the longest wait Envoy waits so much longer for our word: it is to be ours, not a time-out.
HOLD_MARGIN_S = 5.0


class ConfigError(Exception):
    """The config cannot be used; the message names the file and, a line each, what is wrong."""


class PoolConfig(Block):
    """The replicas of one model behind one Envoy cluster of the same name."""

    model: Name
    """What the servers of this pool call the model; clients may ask for it by this name."""
    slots: int = Field(gt=0, le=100_000)
    """How many sequences may be in each of these servers at once."""
    context: int | None = Field(default=None, gt=0)
    """Tokens that a prompt and its answer may take together. None: no limit known."""
    serves: Literal["generate", "embeddings"] = "generate"
    """generate: /v1/chat/completions and /v1/completions. embeddings: /v1/embeddings alone."""
    server: Literal["vllm", "other"] = "vllm"
    """Only a vllm server is asked for its health and asked to stop."""
    partial_by: Literal["ask", "guard"]
    """How an answer ends at its deadline. ask: the server is asked to end it, which costs nothing
    per token; only vLLM can. guard: streamed answers pass by way of the processor, which ends them
    itself. Left out: ask for vllm, guard for other."""
    endpoints: tuple[Url, ...] = ()
    """The replicas. Left out in a bootstrap: read from the Envoy cluster."""
    overflow_only: bool = False
    """Never chosen first by a rule; only as a later tier, by its name, or in an overload."""
    priority: bool = False
    """true: the servers run with --scheduling-policy priority, and are sent a number by class and
    tenant; lower goes first."""
    cache_salt: Literal["none", "tenant", "user"] = "none"
    """Within whom these servers share their prefix cache. none: all. user: a request without a user
    id shares with nobody."""
    price: PriceConfig | None = None
    """None: its tokens are counted, but have no cost."""

    @model_validator(mode="before")
    @classmethod
    def _partial_as_the_server_can(cls, given: object) -> object:
        block = mapping(given)
        by = "guard" if block.get("server") == "other" else "ask"
        return {"partial_by": by, **block}

    @model_validator(mode="before")
    @classmethod
    def _vectors_have_no_output(cls, given: object) -> object:
        block = mapping(given)
        price = mapping(block.get("price"))
        if block.get("serves") != "embeddings" or "input" not in price:
            return given
        return {**block, "price": {"output": 0, **price}}

    @property
    def all_slots(self) -> int:
        """When every replica is up."""
        return self.slots * max(len(self.endpoints), 1)

    @model_validator(mode="after")
    def _only_vllm_can_be_asked(self) -> Self:
        if self.partial_by == "ask" and self.server == "other":
            raise ValueError("partial_by: ask works with vllm servers only; write guard")
        return self

    @model_validator(mode="after")
    def _only_vllm_can_be_told(self) -> Self:
        told = self.priority or self.cache_salt != "none"
        if told and self.server == "other":
            raise ValueError("priority and cache_salt are for vllm servers only; leave them out")
        if told and self.serves == "embeddings":
            raise ValueError("priority and cache_salt are for pools that generate; leave them out")
        return self


class SloConfig(Block):
    ttft: DurationS = 1.0
    """From a request's arrival to the first token of its answer."""
    tpot: DurationS = 0.05
    """Time per output token after the first. Nothing is decided by it; `forebay doctor` judges."""
    percentile: float = Field(default=0.99, ge=0.5, lt=1)
    """The share that is to hold them: for `auto` marks of the requests that have to wait at all,
    for the doctor of all answers."""


class BatchConfig(Block):
    """The lane of class `batch`: it gets a slot only while nobody else waits."""

    spare: float = Field(default=0.1, ge=0, lt=1)
    """The share of a pool's slots that it leaves free, rounded up; all but one at most."""
    max_wait: DurationS | None = None
    """Longest wait of a batch request, up to minutes: Envoy's max_message_timeout must be above it.
    As many may wait as the pool would serve in that time. None: as in admission, at half of the
    marks."""
    when_needed: Literal["wait", "stop"] = "wait"
    """stop: where an interactive request has to queue, the batch answer that began last is ended
    early, well-formed. wait: it runs to its end."""


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
    on_overload: tuple[Literal["cached", "smaller", "shorter", "overflow", "shed"], ...] = (
        "cached",
        "smaller",
        "shed",
    )
    """What to do for a request that a pool sheds, in this order. cached: an expired answer (see
    cache.exact.stale). smaller: the small pool, where the choice was ours. shorter: answers that
    had to wait get `shorter_tokens` at most. overflow: the overflow_only pools of its fallback
    list, where the choice was ours. shed: 429; the last."""
    shorter_tokens: int = Field(default=256, gt=0)
    batch: BatchConfig = BatchConfig()

    @property
    def most_waiting(self) -> int:
        """Of each pool, at the high marks."""
        high = MOST_WAITING if self.high_water == "auto" else self.high_water
        return high + (MOST_WAITING if self.batch.max_wait else high // 2)

    @property
    def waits_s(self) -> tuple[float, float]:
        """The longest wait, by class."""
        return self.max_wait, self.batch.max_wait or self.max_wait

    @property
    def held_s(self) -> float | None:
        """How long Envoy may have to wait for us beyond its message_timeout. None: it need not."""
        return self.batch.max_wait and self.batch.max_wait + HOLD_MARGIN_S

    @model_validator(mode="after")
    def _batch_waits_no_less(self) -> Self:
        batch_s = self.batch.max_wait
        if batch_s is not None and batch_s < self.max_wait:
            raise ValueError(
                f"batch.max_wait ({batch_s:g}s) must not be below max_wait ({self.max_wait:g}s)"
            )
        return self

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
    or else the last. Both are among the pools that generate."""
    fallback: dict[Name, tuple[Name, ...]] = Field(default={})
    """Per pool: the pools to try after it, in order. A pool may stand twice to be tried twice."""
    aliases: dict[Name, Name] = Field(default={})
    """What else clients may call a pool, or `auto_model`: `{gpt-4o: large, default: auto}`."""
    difficulty: DifficultyConfig = DifficultyConfig()
    learning: LearningConfig | None = None
    """None: off."""
    prefix_affinity: bool = False
    """Requests whose prompts begin alike go to the same replica, which has that beginning in its
    prefix cache: their hash is in the header x-forebay-prefix, for clusters with lb_policy:
    RING_HASH."""


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


Path = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
_EMBEDDINGS: Path = "/v1/embeddings"


class ResponseConfig(Block):
    deadline: DurationS = 120.0
    """From the arrival of a request, of a batch request from its slot, to the end of its answer."""
    grace: DurationS = 2.0
    """How long after the deadline the server may take to end the answer before Envoy cuts it."""
    stall: DurationS = 30.0
    """How long a guarded stream may be silent, before its first token too, before it is ended."""
    on_expiry: Literal["partial", "cut"] = "partial"
    """partial: ask vllm servers to end the answer well-formed at the deadline; cut: only cut it."""
    cap_to_deadline: bool = False
    """Whether answers that could only be cut at their deadline (a JSON answer of an `other` server;
    any, with on_expiry: cut) get no more tokens than the pool was seen to write in the time that is
    left, so that they end in time, by `length`."""
    paths: dict[Path, ExpiryConfig] = Field(default={})
    """Other deadlines and ways for one endpoint; a tenant's own go before. What is not generated
    has no partial answer: at its deadline it is cut."""


class TenantConfig(ExpiryConfig, TenantLimitsConfig):
    model_config = ConfigDict(validate_by_name=False, validate_by_alias=True)

    request_class: Literal["interactive", "batch"] = Field(default="interactive", alias="class")
    """batch: gets only what nobody else waits for, see admission.batch."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """The tenant's share of a pool's tokens beside others of its class, when there is a queue."""
    pools: tuple[Name, ...] | None = None
    """The pools that this tenant may use. None: all."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of each choice of an answer. None: as the client says."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """Where pools have `priority`: added to that of the class, which counts for more."""
    pin: Name | None = None
    """The pool where requests go that leave the choice to us, whatever they ask: not judged, and
    never degraded to the small pool. A model named by the client goes before."""
    learning: bool = True
    """false: no request of it is sampled for routing.learning, so the judge sees none of its
    prompts."""
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

    def pools_that(self, serves: Literal["generate", "embeddings"]) -> tuple[str, ...]:
        return tuple(name for name, pool in self.pools.items() if pool.serves == serves)

    @property
    def reads_users(self) -> bool:
        """Something depends on who the user is."""
        by_user = any(pool.cache_salt == "user" for pool in self.pools.values())
        return by_user or "user" in self.scopes

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
        partial = way == "partial" and path != _EMBEDDINGS
        return Expiry(deadline_s, self.response.grace if partial else 0.0, partial)

    @property
    def expiries(self) -> list[Expiry]:
        """All that there are."""
        paths = ("", *self.response.paths)
        return [self.expiry(tenant, path) for tenant in ("", *self.tenants) for path in paths]

    @property
    def longest_s(self) -> float:
        """From a request's arrival, of a batch request from its slot, to the last moment that its
        answer can have."""
        return max(expiry.last_s for expiry in self.expiries)

    @property
    def longest_stream_s(self) -> float:
        """The same from the arrival on, whatever the class."""
        return self.longest_s + self.admission.waits_s[1]

    @model_validator(mode="before")
    @classmethod
    def _small_and_large(cls, given: object) -> object:
        """Where the routing does not name them, by the pools' names or their order."""
        block = mapping(given)
        given_pools = mapping(block.get("pools"))
        texts = [n for n, p in given_pools.items() if mapping(p).get("serves") != "embeddings"]
        pools = texts or list(given_pools)
        routing = block.get("routing", {})
        if not isinstance(routing, Mapping):
            return given
        # Without pools, which is told of itself, any names will do.
        small = "small" if "small" in pools or not pools else pools[0]
        large = "large" if "large" in pools or not pools else pools[-1]
        chosen = {"small": small, "large": large, **mapping(cast(object, routing))}
        return {**block, "routing": chosen}
