"""Mistakes in the policy in words for whoever writes the file, each with the path of its key."""

import difflib
from collections.abc import Iterator

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from extproc.config.policy import (
    AdmissionConfig,
    CacheConfig,
    Config,
    CostsConfig,
    ExactCacheConfig,
    PoolConfig,
    PriceConfig,
    RedisConfig,
    ResponseConfig,
    RoutingConfig,
    StoreConfig,
    TenantCacheConfig,
    TenantConfig,
)


def mistakes(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        where = ".".join(["forebay", *(str(part) for part in detail["loc"] if part != "[key]")])
        yield f"{where}: {_in_plain_words(detail)}"


# Pydantic's words for a programmer, in words for whoever writes the file.
_PLAIN = {
    "missing": "missing; it is required",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le}",
    "tuple_type": "must be a list",
    "dict_type": "must be a block of keys",
    "model_type": "must be a block of keys",
    "string_type": "must be text; quote it if it looks like a number",
    "string_unicode": "must be text that can be written as UTF-8",
    "invalid_key": "a key must be text; quote it if it looks like a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "path_type": "must be a path",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "literal_error": "must be {expected}",
    "too_short": "must not be empty",
}


def _in_plain_words(detail: ErrorDetails) -> str:
    if detail["type"] == "extra_forbidden":
        return "unknown key" + _did_you_mean(detail["loc"])
    words = _PLAIN.get(detail["type"])
    if words is None:
        return detail["msg"].removeprefix("Value error, ")
    return words.format(**detail.get("ctx", {})) + _instead(detail["input"], detail["type"])


def _instead(given: object, kind: str) -> str:
    """What stands there, where that is short and says more than the rule alone."""
    if kind in ("missing", "too_short", "string_type", "string_unicode", "invalid_key"):
        return ""
    if given is None:
        return "; nothing stands there"
    if isinstance(given, str | int | float) and len(shown := str(given)) <= 40:
        return f", not {shown!r}" if isinstance(given, str) else f", not {shown}"
    return ""


def _did_you_mean(loc: tuple[int | str, ...]) -> str:
    """The key of this block that looks most like the unknown one."""
    blocks: dict[str, type[BaseModel]] = {
        "pools": PoolConfig,
        "tenants": TenantConfig,
        "admission": AdmissionConfig,
        "routing": RoutingConfig,
        "response": ResponseConfig,
        "cache": CacheConfig,
        "exact": ExactCacheConfig,
        "store": StoreConfig,
        "redis": RedisConfig,
        "costs": CostsConfig,
        "price": PriceConfig,
    }
    block = next((blocks[str(part)] for part in reversed(loc[:-1]) if part in blocks), Config)
    if block is CacheConfig and loc[0] == "tenants":
        block = TenantCacheConfig
    near = difflib.get_close_matches(str(loc[-1]), block.model_fields, n=1)
    return f"; did you mean {near[0]}?" if near else ""
