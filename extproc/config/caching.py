"""What the policy says of the caches: `cache`, and `tenants.NAME.cache`."""

from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from extproc.config.values import Block, DurationS, RedisUrl, SizeBytes, Url

CacheScope: TypeAlias = Literal["user", "tenant", "public"]
CacheWanted: TypeAlias = Literal["deterministic", "asked"]


class RedisConfig(Block):
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


class MemoryOrBlock(Block):
    """A store, written as `memory`, or as `{redis: {url: ...}}`."""

    @model_validator(mode="before")
    @classmethod
    def _memory(cls, given: object) -> object:
        if isinstance(given, str) and given != "memory":
            raise ValueError("write memory, or a block: {redis: {url: redis://host:6379}}")
        return {} if given == "memory" else given


class StoreConfig(MemoryOrBlock):
    redis: RedisConfig | None = None
    """None: in this processor's memory, and only there."""


class ExactCacheConfig(Block):
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


class EmbedderConfig(Block):
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


class SemanticCacheConfig(Block):
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


class CacheConfig(Block):
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


class TenantCacheConfig(Block):
    """Left out: as for all others, in `cache.exact`."""

    scope: CacheScope | None = None
    store: CacheWanted | None = None
    exact: bool = True
    """off: nothing of this tenant is stored or read."""
    semantic: bool = True
    """off: its questions are not compared."""
