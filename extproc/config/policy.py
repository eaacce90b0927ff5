"""The policy block, `forebay`: its keys, their meaning, units and defaults."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from extproc.admission import MOST_WAITING
from extproc.config.tree import mapping


class ConfigError(Exception):
    """The config cannot be used; the message names the file and, a line each, what is wrong."""


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SIZE = re.compile(r"(\d+)(KiB|MiB|GiB)")
_UNIT_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration_s(value: object) -> object:
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        return float(match[1]) * _UNIT_S[match[2]]
    raise ValueError("write a duration with its unit: 500ms, 10s, 2m or 1h")


def _size_bytes(value: object) -> object:
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        return int(match[1]) * _UNIT_BYTES[match[2]]
    raise ValueError("write a size with its unit: 512KiB, 64MiB or 2GiB")


def _header_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+", value):
        raise ValueError("write a header name in lower case: letters, digits and '-'")
    return value


def _name(value: str) -> str:
    # These stand in metadata between ';', '=' and '"' (see Exchange), and in metric labels.
    if not re.fullmatch(r"[A-Za-z0-9._:/|@+-]{1,200}", value):
        raise ValueError("use letters, digits and . _ : / | @ + - only, 200 at most")
    return value


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/@\s]+", value):
        raise ValueError("write http://host:port, without a path or a credential")
    return value


def _redis_url(value: str) -> str:
    if "@" in value:
        raise ValueError(
            "write no credential here: username beside it, and the password into password_file or "
            "the environment's FOREBAY_REDIS_PASSWORD"
        )
    if not re.fullmatch(r"rediss?://[^/?#\s]+(/\d{1,5})?", value):
        raise ValueError("write redis://host:port or rediss://host:port, and /NUMBER if need be")
    return value


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535:
        raise ValueError("write host:port, with a port from 0 to 65535")
    return value


def _mark(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 0):
        return value
    raise ValueError("write a number of waiting requests, 0 or more, or auto")


DurationS = Annotated[float, BeforeValidator(_duration_s), Field(gt=0)]
SizeBytes = Annotated[int, BeforeValidator(_size_bytes), Field(gt=0)]
Mark = Annotated[int | Literal["auto"], BeforeValidator(_mark)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
Name = Annotated[str, AfterValidator(_name)]
Url = Annotated[str, AfterValidator(_url)]
RedisUrl = Annotated[str, AfterValidator(_redis_url)]
Address = Annotated[str, AfterValidator(_address)]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PriceConfig(_Block):
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


class PoolConfig(_Block):
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


class SloConfig(_Block):
    ttft: DurationS = 1.0
    """From a request's arrival to the first token of its answer."""
    tpot: DurationS = 0.05
    """Time per output token after the first. Nothing is decided by it; `forebay doctor` judges."""
    percentile: float = Field(default=0.99, ge=0.5, lt=1)
    """The share that is to hold them: for `auto` marks of the requests that have to wait at all,
    for the doctor of all answers."""


class AdmissionConfig(_Block):
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


class RoutingConfig(_Block):
    auto_model: Name = "auto"
    """The model name by which a client leaves the choice to the rules."""
    small: Name
    """The pool for the easy majority. Left out: the one called small, or else the first."""
    large: Name
    """The pool for what the rules find hard, and for long prompts. Left out: the one called large,
    or else the last."""
    fallback: dict[Name, tuple[Name, ...]] = {}
    """Per pool: the pools to try after it, in order. A pool may stand twice to be tried twice."""


CacheScope: TypeAlias = Literal["user", "tenant", "public"]
CacheWanted: TypeAlias = Literal["deterministic", "asked"]


class RedisConfig(_Block):
    """Redis 7 or newer, or Valkey; no modules. Its memory is bounded by its own `maxmemory`."""

    url: RedisUrl
    """redis://host:port, or rediss:// for TLS; a number of a database may follow: /1."""
    username: str | None = None
    password_file: Path | None = None
    """Left out: the environment's FOREBAY_REDIS_PASSWORD, or no password."""
    ca_file: Path | None = None
    """Whom to believe that it is Redis (PEM). Left out: the system's own list."""
    cert_file: Path | None = None
    """With key_file: what Redis is shown of us, if it asks."""
    key_file: Path | None = None
    cluster: bool = False
    """Several nodes that share the keys; `url` names any of them."""
    connections: int = Field(default=8, gt=0, le=1000)
    """Look-ups at once; a few more connections are for writing."""
    time_limit: DurationS = 0.02
    """How long a request waits for a look-up at most; after it it is a miss."""

    @model_validator(mode="after")
    def _files_fit(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file: name both or none")
        if not self.url.startswith("rediss:") and (self.ca_file or self.cert_file):
            raise ValueError("ca_file and cert_file are for TLS: write the url as rediss://")
        if self.cluster and self.url.count("/") > 2:
            raise ValueError("url: a cluster has no numbered databases; leave out what follows")
        return self


class StoreConfig(_Block):
    """Written as `memory`, or as `{redis: {url: ...}}`."""

    redis: RedisConfig | None = None
    """None: in this processor's memory, and only there."""

    @model_validator(mode="before")
    @classmethod
    def _memory(cls, given: object) -> object:
        if isinstance(given, str) and given != "memory":
            raise ValueError("write memory, or a block: {redis: {url: redis://host:6379}}")
        return {} if given == "memory" else given


class ExactCacheConfig(_Block):
    scope: CacheScope = "tenant"
    """Within whom an answer is shared. user: only with a user id in user_header; public: all
    tenants that have this scope."""
    store: CacheWanted = "deterministic"
    """What is stored. deterministic: answers to requests with temperature 0, and what a client asks
    for by Cache-Control: max-age; asked: only the latter."""
    ttl: DurationS = 3600.0
    """How long an answer may be given again; a hit does not prolong it."""
    ttl_jitter: float = Field(default=0.1, ge=0, le=0.9)
    """The share of `ttl` that chance takes away, up to this, so that what was stored together does
    not expire together."""
    stale: DurationS = 600.0
    """How much longer it may be given where the request would be shed: see on_overload."""
    max_bytes: SizeBytes = 64 * 1024 * 1024
    """What the whole store may hold, in this processor's memory."""


class EmbedderConfig(_Block):
    """Whose vectors find candidates. Written as `minilm` (all-MiniLM-L6-v2, in the extra
    `semantic`), or as a block with a folder or a url."""

    folder: Path | None = None
    """With model.onnx and tokenizer.json."""
    url: Url | None = None
    """http://host:port of a server that has POST /v1/embeddings."""
    model: str | None = None
    """As the server calls it."""
    key_file: Path | None = None
    """With a credential for the server. Left out: the environment's FOREBAY_EMBEDDER_KEY, or
    none."""
    time_limit: DurationS = 0.1
    """How long a request waits for a vector at most; after it it is a miss."""
    at_once: int = Field(default=8, gt=0, le=1000)
    """Texts that may be computed or waited for; one more is a miss at once."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: object) -> object:
        if isinstance(given, str) and given != "minilm":
            raise ValueError("write minilm, or a block: {folder: PATH} or {url: URL, model: NAME}")
        return {} if given == "minilm" else given

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.folder and self.url:
            raise ValueError("folder and url: name one of them")
        if (self.url is None) != (self.model is None):
            raise ValueError("url and model: name both or none")
        if self.key_file and not self.url:
            raise ValueError("key_file is for a url")
        return self


class SemanticCacheConfig(_Block):
    """Questions that ask the same in other words get one answer. Needs the extra `semantic`."""

    scope: Literal["user", "tenant"] = "user"
    """Within whom questions are compared. user: only with a user id in user_header."""
    ttl: DurationS = 3600.0
    """How long an answer may be given to other words; never longer than exact.ttl."""
    similarity: float = Field(default=0.6, ge=0, le=1)
    """How alike two questions must be (cosine) to be looked at. Whether they ask the same is never
    decided by it: 0 looks at all, 1 at equal ones."""
    false_hit_budget: float = Field(default=0.01, gt=0, le=0.1)
    """The share of hits that may be wrong. Above it a tenant's questions are compared no more."""
    check_share: float = Field(default=0.05, gt=0, le=1)
    """The share of hits that the model answers instead, to be compared with what the cache says."""
    check_first: int = Field(default=20, ge=0)
    """So many hits of each tenant are compared before any is given."""
    embedder: EmbedderConfig = EmbedderConfig()
    max_entries: int = Field(default=1000, gt=0, le=100_000)
    """Questions to compare one with, at most."""
    max_bytes: SizeBytes = 64 * 1024 * 1024
    """What all questions may hold of this processor's memory."""


class CacheConfig(_Block):
    store: StoreConfig = StoreConfig()
    secret_file: Path | None = None
    """A file with what all names and proofs in the store are keyed by: 16 bytes or more, the same
    for all processors that share it. Left out: the environment's FOREBAY_CACHE_SECRET. Needed with
    Redis; in memory it is drawn at each start."""
    exact: ExactCacheConfig | None = None
    semantic: SemanticCacheConfig | None = None
    """None: off."""

    @model_validator(mode="after")
    def _answers_are_kept_by_exact(self) -> Self:
        if self.semantic and not self.exact:
            raise ValueError("semantic needs exact, which keeps the answers: write exact: {}")
        return self

    @model_validator(mode="after")
    def _bounded_where_it_is(self) -> Self:
        if self.store.redis and self.exact and "max_bytes" in self.exact.model_fields_set:
            raise ValueError("exact.max_bytes is for memory; Redis has its own maxmemory")
        return self


class TenantCacheConfig(_Block):
    """Left out: as for all others, in `cache.exact`."""

    scope: CacheScope | None = None
    store: CacheWanted | None = None
    exact: bool = True
    """off: nothing of this tenant is stored or read."""
    semantic: bool = True
    """off: its questions are not compared."""


class Expiry(NamedTuple):
    """When the answer to a request has to have ended, and how."""

    deadline_s: float
    grace_s: float
    """After the deadline, until Envoy cuts. 0 where nothing is to be ended well."""
    partial: bool

    @property
    def last_s(self) -> float:
        return self.deadline_s + self.grace_s


class ExpiryConfig(_Block):
    """Left out: as for all others."""

    deadline: DurationS | None = None
    on_expiry: Literal["partial", "cut"] | None = None


class ResponseConfig(_Block):
    deadline: DurationS = 120.0
    """From the arrival of a request to the end of its answer."""
    grace: DurationS = 2.0
    """How long after the deadline the server may take to end the answer before Envoy cuts it."""
    stall: DurationS = 30.0
    """How long a guarded stream may be silent, before its first token too, before it is ended."""
    on_expiry: Literal["partial", "cut"] = "partial"
    """partial: ask vllm servers to end the answer well-formed at the deadline; cut: only cut it."""
    paths: dict[Literal["/v1/chat/completions", "/v1/completions"], ExpiryConfig] = {}
    """Other deadlines and ways for one endpoint; a tenant's own go before."""


class TenantConfig(ExpiryConfig):
    model_config = ConfigDict(validate_by_name=False, validate_by_alias=True)

    request_class: Literal["interactive", "batch"] = Field(default="interactive", alias="class")
    """batch: sheds at half of the marks, and waits behind interactive requests."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """The tenant's share of a pool's tokens beside others of its class, when there is a queue."""
    pools: tuple[Name, ...] | None = None
    """The pools that this tenant may use. None: all."""
    cache: TenantCacheConfig = TenantCacheConfig()


class CostsConfig(_Block):
    batch_price: float = Field(default=1.0, ge=0, le=1)
    """What requests of class batch cost, as a share of the price."""


class Config(_Block):
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
    tenants: dict[Name, TenantConfig] = {}
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
