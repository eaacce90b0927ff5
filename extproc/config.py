"""The policy: what stands under `node.metadata.forebay` in the Envoy bootstrap, or alone in a file.

The only module that reads files. Every mistake is a ConfigError whose lines begin with the path of
the offending key, for example `forebay.pools.small.slots: Input should be greater than 0`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)


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


DurationS = Annotated[float, BeforeValidator(_duration_s), Field(gt=0)]
SizeBytes = Annotated[int, BeforeValidator(_size_bytes), Field(gt=0)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
Name = Annotated[str, AfterValidator(_name)]
Url = Annotated[str, Field(pattern=r"^https?://[^/\s]+$")]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolConfig(_Block):
    """The replicas of one model behind one Envoy cluster of the same name."""

    model: Name
    """What the servers of this pool call the model; clients may ask for it by this name."""
    slots: int = Field(gt=0, le=100_000)
    """How many requests may be in these servers at once."""
    context: int | None = Field(default=None, gt=0)
    """Tokens that a prompt and its answer may take together. None: no limit known."""
    server: Literal["vllm", "other"] = "vllm"
    """Only a vllm server is asked for its health and asked to stop."""
    endpoints: tuple[Url, ...] = ()
    """The replicas. Left out in a bootstrap: read from the Envoy cluster."""
    overflow_only: bool = False
    """Never chosen first by a rule; only as a later tier, or by its name."""


class AdmissionConfig(_Block):
    max_wait: DurationS = 10.0
    """Longest wait in the queue, in seconds; after it 429 `queue_timeout`."""
    high_water: int = Field(default=64, ge=0)
    """Waiting requests per pool at which shedding starts. 0: nobody waits."""
    low_water: int = Field(default=32, ge=0)
    """Waiting requests per pool at which shedding ends."""

    @model_validator(mode="after")
    def _marks_in_order(self) -> Self:
        if self.low_water > self.high_water:
            raise ValueError(
                f"low_water ({self.low_water}) must not be above high_water ({self.high_water})"
            )
        return self


class RoutingConfig(_Block):
    auto_model: Name = "auto"
    """The model name by which a client leaves the choice to the rules."""
    small: Name = "small"
    """The pool for the easy majority."""
    large: Name = "large"
    """The pool for what the rules find hard, and for long prompts."""
    fallback: dict[Name, tuple[Name, ...]] = {}
    """Per pool: the pools to try after it, in order. A pool may stand twice to be tried twice."""


class ExactCacheConfig(_Block):
    scope: Literal["tenant"] = "tenant"
    """Within whom an answer is shared."""
    ttl: DurationS = 3600.0
    """How long an answer may be given again; a hit does not prolong it."""
    max_bytes: SizeBytes = 64 * 1024 * 1024
    """What the whole store may hold, in this processor's memory."""


class CacheConfig(_Block):
    exact: ExactCacheConfig | None = None


class ResponseConfig(_Block):
    deadline: DurationS = 120.0
    """From the arrival of a request to the end of its answer."""
    grace: DurationS = 2.0
    """How long after the deadline the server may take to end the answer before Envoy cuts it."""
    on_expiry: Literal["partial", "cut"] = "partial"
    """partial: ask vllm servers to end the answer well-formed at the deadline; cut: only cut it."""


class TenantConfig(_Block):
    pools: tuple[Name, ...] | None = None
    """The pools that this tenant may use. None: all."""


class Config(_Block):
    """The whole policy block, `forebay`."""

    tenant_header: HeaderName = "x-tenant-id"
    admin: str = Field(default="127.0.0.1:9902", pattern=r"^[^:\s]+:\d{1,5}$")
    """host:port of /metrics, /healthz, /readyz and /status."""
    drain: DurationS = 30.0
    """How long running exchanges may take after SIGTERM."""
    pools: dict[Name, PoolConfig] = Field(min_length=1)
    admission: AdmissionConfig = AdmissionConfig()
    routing: RoutingConfig = RoutingConfig()
    response: ResponseConfig = ResponseConfig()
    cache: CacheConfig = CacheConfig()
    tenants: dict[Name, TenantConfig] = {}
    """Policy by tenant; `default` is for every tenant not named here."""
    unknown_tenant: Literal["default", "refuse"] = "default"
    """What a tenant without a policy of its own gets: that of `default`, or 403."""


class Loaded(BaseModel):
    """A config file as read: the policy, and what the bootstrap around it says."""

    model_config = ConfigDict(frozen=True)

    config: Config
    listen: str | None
    """Where Envoy expects the processor, as a gRPC address. None: the file is a policy alone."""


def load(path: Path) -> Loaded:
    """Read a bootstrap or a file with the policy alone; ConfigError says what to mend."""
    document = read_yaml(path)
    try:
        return from_document(document)
    except ConfigError as error:
        raise ConfigError(f"{path}:\n{error}") from error


def read_yaml(path: Path) -> object:
    """The parsed document, unchecked; ConfigError if there is none."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error


def from_document(document: object) -> Loaded:
    """As `load`, from parsed YAML."""
    top = _mapping(document)
    policy = _mapping(_dig(top, "node", "metadata", "forebay"))
    bootstrap: Mapping[str, Any] = top if policy else {}
    if not policy:
        policy = _mapping(top.get("forebay"))
    if not policy:
        raise ConfigError(
            "forebay: missing. Put the policy under node.metadata.forebay of the Envoy bootstrap, "
            "or under a top-level `forebay` key in a file of its own."
        )
    if bootstrap:
        policy = _with_cluster_endpoints(policy, bootstrap)
    try:
        config = Config.model_validate(policy)
    except ValidationError as error:
        raise ConfigError("\n".join(_lines(error))) from error
    problems = list(_unknown_pools(config))
    listen = None
    if bootstrap:
        problems += _clusters_missing(config, bootstrap)
        listen = _processor_address(bootstrap, problems)
        problems += _hold_times_out_of_order(config, bootstrap)
        problems += _pools_no_route_knows(config, bootstrap)
    if problems:
        raise ConfigError("\n".join(problems))
    return Loaded(config=config, listen=listen)


def _lines(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        where = ".".join(["forebay", *(str(part) for part in detail["loc"] if part != "[key]")])
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            message = "unknown key"
        yield f"{where}: {message}"


def _unknown_pools(config: Config) -> Iterator[str]:
    def check(where: str, names: tuple[str, ...]) -> Iterator[str]:
        for name in names:
            if name not in config.pools:
                yield f"{where}: no pool is named {name!r}; there are {', '.join(config.pools)}"

    routing = config.routing
    yield from check("forebay.routing.small", (routing.small,))
    yield from check("forebay.routing.large", (routing.large,))
    for pool, names in routing.fallback.items():
        yield from check(f"forebay.routing.fallback.{pool}", (pool, *names))
    for tenant, policy in config.tenants.items():
        yield from check(f"forebay.tenants.{tenant}.pools", policy.pools or ())
        if policy.pools == ():
            yield f"forebay.tenants.{tenant}.pools: empty; name at least one pool"
    for name, pool in config.pools.items():
        if pool.model == routing.auto_model:
            yield f"forebay.pools.{name}.model: is also routing.auto_model; rename one of them"


# --- what the bootstrap around the policy says ------------------------------------------------


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _dig(value: object, *keys: str) -> object:
    for key in keys:
        value = _mapping(value).get(key)
    return value


def walk(value: object) -> Iterator[Mapping[str, Any]]:
    """Every mapping in a YAML document, outermost first."""
    if isinstance(value, Mapping):
        mapping = _mapping(cast(object, value))
        yield mapping
        for child in mapping.values():
            yield from walk(child)
    else:
        for child in _list(value):
            yield from walk(child)


def _clusters(bootstrap: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    clusters = _list(_dig(bootstrap, "static_resources", "clusters"))
    return {str(_mapping(c).get("name")): _mapping(c) for c in clusters}


def _addresses(cluster: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for mapping in walk(cluster.get("load_assignment")):
        if "endpoint" in mapping:
            yield _mapping(_dig(mapping, "endpoint", "address"))


def _with_cluster_endpoints(
    policy: Mapping[str, Any], bootstrap: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Pools that name no endpoints take those of the cluster with their name."""
    clusters = _clusters(bootstrap)
    pools: dict[str, Any] = {}
    for name, pool in _mapping(policy.get("pools")).items():
        pools[name] = pool
        if not isinstance(pool, Mapping) or "endpoints" in pool or name not in clusters:
            continue
        sockets = [_mapping(a.get("socket_address")) for a in _addresses(clusters[name])]
        scheme = "https" if "transport_socket" in clusters[name] else "http"
        urls = [f"{scheme}://{s.get('address')}:{s.get('port_value')}" for s in sockets if s]
        pools[name] = {**_mapping(cast(object, pool)), "endpoints": urls}
    return {**policy, "pools": pools or policy.get("pools")}


def _clusters_missing(config: Config, bootstrap: Mapping[str, Any]) -> list[str]:
    clusters = _clusters(bootstrap)
    return [
        f"forebay.pools.{name}: the bootstrap has no static cluster of this name; "
        f"there are {', '.join(clusters) or 'none'}"
        for name in config.pools
        if name not in clusters
    ]


def _ext_proc_filter(bootstrap: Mapping[str, Any]) -> Mapping[str, Any]:
    for mapping in walk(bootstrap.get("static_resources")):
        if str(mapping.get("@type", "")).endswith(".ext_proc.v3.ExternalProcessor"):
            return mapping
    return {}


def _processor_address(bootstrap: Mapping[str, Any], problems: list[str]) -> str | None:
    name = _dig(_ext_proc_filter(bootstrap), "grpc_service", "envoy_grpc", "cluster_name")
    if name is None:
        problems.append("static_resources: no ext_proc filter with an envoy_grpc cluster found")
        return None
    for address in _addresses(_clusters(bootstrap).get(str(name), {})):
        if path := _dig(address, "pipe", "path"):
            return f"unix:{path}"
        if socket := _mapping(address.get("socket_address")):
            return f"{socket.get('address')}:{socket.get('port_value')}"
    problems.append(
        f"static_resources.clusters: {name!r}, the processor's cluster, has no endpoint"
    )
    return None


def _hold_times_out_of_order(config: Config, bootstrap: Mapping[str, Any]) -> Iterator[str]:
    """While a request queues, Envoy waits for our message and sees an idle stream: both of its
    limits must be longer than ours, or it ends requests that still had a chance."""
    max_wait_s = config.admission.max_wait
    message_s = _envoy_duration_s(_ext_proc_filter(bootstrap).get("message_timeout"), 0.2)
    if not max_wait_s < message_s:
        yield (
            f"forebay.admission.max_wait: {max_wait_s:g}s must be below the ext_proc filter's "
            f"message_timeout ({message_s:g}s)"
        )
    for mapping in walk(bootstrap.get("static_resources")):
        if str(mapping.get("@type", "")).endswith(".HttpConnectionManager"):
            idle_s = _envoy_duration_s(mapping.get("stream_idle_timeout"), 300.0)
            if idle_s and not message_s < idle_s:
                yield (
                    f"message_timeout: {message_s:g}s (ext_proc filter) must be below "
                    f"stream_idle_timeout ({idle_s:g}s)"
                )


def _pools_no_route_knows(config: Config, bootstrap: Mapping[str, Any]) -> Iterator[str]:
    """Envoy takes from our list of pools only what its route's priority groups name."""
    for mapping in walk(bootstrap.get("static_resources")):
        if str(mapping.get("@type", "")).endswith(".PriorityGroupClusterSpecifier"):
            names = [_mapping(g).get("name") for g in _list(mapping.get("priority_groups"))]
            for pool in config.pools:
                if pool not in names:
                    yield f"forebay.pools.{pool}: an admit route's priority_groups lacks this pool"
            return


def _envoy_duration_s(value: object, default_s: float) -> float:
    """Envoy writes durations as '1.5s'."""
    if value is None:
        return default_s
    try:
        return float(str(value).removesuffix("s"))
    except ValueError as error:
        raise ConfigError(f"{value!r} is no duration; Envoy writes them as 1.5s") from error
