"""What a request allows the cache: its Cache-Control header, its temperature, and what its tenant
wants stored. Pure."""

import re
from typing import Literal, NamedTuple, TypeAlias

Wanted: TypeAlias = Literal["deterministic", "asked"]
"""deterministic: answers to requests with temperature 0, and what is asked for by max-age; asked:
only the latter."""

_MAX_AGE = re.compile(r"max-age=([0-9]{1,9})")


class CachePolicy(NamedTuple):
    may_read: bool
    may_store: bool
    max_age_s: float | None
    """The oldest entry that the client takes. None: any that has not expired."""

    def takes(self, age_s: float) -> bool:
        return self.max_age_s is None or age_s <= self.max_age_s


_ALWAYS = CachePolicy(may_read=True, may_store=True, max_age_s=None)
_NEVER = CachePolicy(may_read=False, may_store=False, max_age_s=None)


def cache_policy(
    cache_control: str, temperature: float | None, wanted: Wanted = "deterministic"
) -> CachePolicy:
    """By RFC 9111: `no-store` neither reads nor stores, `no-cache` reads nothing, `max-age=N` reads
    what is at most N seconds old. An answer that is drawn at random (any temperature but 0) is only
    cached if the client asks for it with a max-age."""
    by_itself = temperature == 0 and wanted == "deterministic"
    if not cache_control:
        return _ALWAYS if by_itself else _NEVER
    directives = directives_of(cache_control)
    ages = [float(match[1]) for d in directives if (match := _MAX_AGE.fullmatch(d))]
    max_age_s = min(ages) if ages else None
    may_store = (max_age_s is not None or by_itself) and "no-store" not in directives
    return CachePolicy(may_store and "no-cache" not in directives, may_store, max_age_s)


def directives_of(cache_control: str) -> set[str]:
    return {part.strip() for part in cache_control.lower().split(",")}
