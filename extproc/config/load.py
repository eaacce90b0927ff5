"""Reads a bootstrap, or a policy alone, and refuses it whole or gives it whole."""

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from extproc.config import bootstrap as around
from extproc.config.aliases import alias_mistakes
from extproc.config.policy import Config, ConfigError
from extproc.config.tree import dig, mapping
from extproc.config.words import mistakes


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


def read_text(path: Path) -> str:
    """ConfigError if that cannot be."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error


def read_yaml(path: Path) -> object:
    """The parsed document, unchecked; ConfigError if there is none."""
    text = read_text(path)
    try:
        return parse_yaml(text)
    except RecursionError as error:
        raise ConfigError(f"{path}: not YAML: it nests too deep") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: dates and numbers of no sense
        raise ConfigError(f"{path}: not YAML: {error}") from error


def parse_yaml(text: str) -> object:
    """As yaml.safe_load, ten times faster where PyYAML has libyaml; what that refuses is told by
    PyYAML itself, which shows the line."""
    if fast := getattr(yaml, "CSafeLoader", None):
        with suppress(yaml.YAMLError):
            return yaml.load(text, Loader=fast)
    return yaml.safe_load(text)


def from_document(document: object) -> Loaded:
    """As `load`, from parsed YAML."""
    top = mapping(document)
    policy = mapping(dig(top, "node", "metadata", "forebay"))
    bootstrap: Mapping[str, Any] = top if policy else {}
    if not policy:
        policy = mapping(top.get("forebay"))
    if not policy:
        raise ConfigError(_why_no_policy(top))
    if bootstrap:
        policy = around.with_cluster_endpoints(policy, bootstrap)
    try:
        config = Config.model_validate(policy)
    except ValidationError as error:
        raise ConfigError("\n".join(mistakes(error, policy))) from error
    problems = list(_unknown_pools(config)) or list(_mixed_kinds(config))
    problems += [*alias_mistakes(config), *_unlearnable(config)]
    listen = None
    if bootstrap:
        problems += around.clusters_missing(config, bootstrap)
        listen = around.processor_address(bootstrap, problems)
        problems += around.hold_times_out_of_order(config, bootstrap)
        problems += around.pools_no_route_knows(config, bootstrap)
        problems += around.headers_withheld(config, bootstrap)
    if problems:
        raise ConfigError("\n".join(problems))
    return Loaded(config=config, listen=listen)


def _why_no_policy(top: Mapping[str, Any]) -> str:
    metadata = mapping(dig(top, "node", "metadata"))
    for place, block in (("node.metadata.", metadata), ("", top)):
        if "forebay" in block:
            return "forebay: no keys stand in it; it needs pools at least"
        if near := difflib.get_close_matches("forebay", map(str, block), n=1):
            return f"forebay: missing; did you mean it by {place}{near[0]}?"
    return (
        "forebay: missing. Put the policy under node.metadata.forebay of the Envoy bootstrap "
        "(`forebay attach FILE` adds it and all that it needs), or under a top-level `forebay` key "
        "in a file of its own."
    )


def _mixed_kinds(config: Config) -> Iterator[str]:
    """Text is not answered with vectors, and vectors of two models cannot be compared."""
    pools, routing = config.pools, config.routing
    generate = config.pools_that("generate")
    for size, name in (("small", routing.small), ("large", routing.large)):
        if generate and name not in generate:
            yield (
                f"forebay.routing.{size}: {name!r} serves embeddings; name a pool that generates: "
                f"{', '.join(generate)}"
            )
    for tenant, policy in config.tenants.items():
        if policy.pin and policy.pin not in generate:
            yield (
                f"forebay.tenants.{tenant}.pin: {policy.pin!r} serves embeddings, which are never "
                "pinned; name a pool that generates"
            )
    for name, later in routing.fallback.items():
        for other in later:
            if pools[name].serves != pools[other].serves:
                yield (
                    f"forebay.routing.fallback.{name}: {other!r} serves {pools[other].serves}, and "
                    f"{name!r} serves {pools[name].serves}: neither can take the other's requests"
                )
            elif pools[name].serves != "generate" and pools[name].model != pools[other].model:
                yield (
                    f"forebay.routing.fallback.{name}: {other!r} has another model: vectors of two "
                    "models cannot be compared. Only pools with the same `model` may be named"
                )


def _unknown_pools(config: Config) -> Iterator[str]:
    def check(where: str, names: tuple[str, ...]) -> Iterator[str]:
        for name in names:
            if name not in config.pools:
                yield f"{where}: no pool is named {name!r}; there are {', '.join(config.pools)}"

    routing = config.routing
    for size, name in (("small", routing.small), ("large", routing.large)):
        yield from check(f"forebay.routing.{size}", (name,))
        if name in config.pools and config.pools[name].overflow_only:
            yield f"forebay.routing.{size}: {name!r} is overflow_only, which no rule may choose"
    for pool, names in routing.fallback.items():
        yield from check(f"forebay.routing.fallback.{pool}", (pool, *names))
    for tenant, policy in config.tenants.items():
        yield from check(f"forebay.tenants.{tenant}.pools", policy.pools or ())
        if policy.pools == ():
            yield f"forebay.tenants.{tenant}.pools: empty; name at least one pool"
        yield from check(f"forebay.tenants.{tenant}.pin", (policy.pin,) if policy.pin else ())
        if policy.pin in config.pools and policy.pools and policy.pin not in policy.pools:
            allowed = ", ".join(policy.pools)
            yield (
                f"forebay.tenants.{tenant}.pin: {policy.pin!r} is none of the tenant's pools "
                f"({allowed}); add it there, or pin to one of these"
            )
    for name, pool in config.pools.items():
        if pool.model == routing.auto_model:
            yield f"forebay.pools.{name}.model: is also routing.auto_model; rename one of them"


def _unlearnable(config: Config) -> Iterator[str]:
    """A budget in dollars bounds nothing where a sample has no price."""
    if config.routing.learning is None:
        return
    for name in dict.fromkeys((config.routing.small, config.routing.large)):
        if name in config.pools and config.pools[name].price is None:
            yield (
                f"forebay.routing.learning.usd_per_day: pools.{name} has no price to count it by; "
                "write price: {input: 0.10, output: 0.40} there, with zeros if it costs nothing"
            )
