"""The kinds of values that the policy block is made of, and how each is written."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

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


class Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
