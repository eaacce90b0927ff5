"""Mistakes in the policy in words for whoever writes the file, each with the path of its key."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from extproc.config.caching import (
    CacheConfig,
    EmbedderConfig,
    ExactCacheConfig,
    RedisConfig,
    SemanticCacheConfig,
    StoreConfig,
    TenantCacheConfig,
)
from extproc.config.difficulty import DifficultyConfig, JudgeConfig, LearningConfig
from extproc.config.limiting import BudgetConfig, LimitsConfig
from extproc.config.policy import (
    AdmissionConfig,
    BatchConfig,
    Config,
    CostsConfig,
    ExpiryConfig,
    PoolConfig,
    PriceConfig,
    ResponseConfig,
    RoutingConfig,
    SloConfig,
    TenantConfig,
)


def mistakes(error: ValidationError, given: object) -> Iterator[str]:
    """`given`: what was validated, as it stands in the file."""
    details = error.errors()
    # What we filled in ourselves is wrong only because of something that stands there.
    written = [one for one in details if one["type"] == "missing" or _stands(given, one["loc"])]
    for detail in written or details:
        where = ".".join(["forebay", *(str(part) for part in detail["loc"] if part != "[key]")])
        yield f"{where}: {_in_plain_words(detail)}"


def _stands(given: object, loc: Sequence[int | str]) -> bool:
    for part in loc:
        if isinstance(given, Mapping):
            block = cast("Mapping[object, object]", given)
            if part != "[key]" and part not in block:
                return False
            given = block.get(part)
        elif isinstance(given, list) and isinstance(part, int):
            entries = cast("list[object]", given)
            given = entries[part] if part < len(entries) else None
    return True


# Pydantic's words for a programmer, in words for whoever writes the file.
_PLAIN = {
    "missing": "missing; it is required",
    "greater_than": "must be above {gt:g}",
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
    """The key of this block that looks most like the unknown one, or else all its keys."""
    keys = [field.alias or name for name, field in _block(loc).model_fields.items()]
    near = difflib.get_close_matches(str(loc[-1]).lower(), keys, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(keys)}"


def _block(loc: tuple[int | str, ...]) -> type[BaseModel]:
    """In which an unknown key stands."""
    blocks: dict[str, type[BaseModel]] = {
        "pools": PoolConfig,
        "tenants": TenantConfig,
        "admission": AdmissionConfig,
        "slo": SloConfig,
        "batch": BatchConfig,
        "routing": RoutingConfig,
        "difficulty": DifficultyConfig,
        "learning": LearningConfig,
        "judge": JudgeConfig,
        "response": ResponseConfig,
        "paths": ExpiryConfig,
        "cache": CacheConfig,
        "exact": ExactCacheConfig,
        "semantic": SemanticCacheConfig,
        "embedder": EmbedderConfig,
        "store": StoreConfig,
        "redis": RedisConfig,
        "limits": LimitsConfig,
        "budget": BudgetConfig,
        "costs": CostsConfig,
        "price": PriceConfig,
    }
    # A pool or a tenant may be called as a block is.
    above = loc[:1] + loc[2:-1] if loc[0] in ("pools", "tenants") else loc[:-1]
    found = [blocks[part] for part in map(str, above[: len(loc) - 1]) if part in blocks]
    if found == [TenantConfig, CacheConfig]:
        return TenantCacheConfig
    return found[-1] if found else Config
