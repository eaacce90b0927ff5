"""What a request allows the cache: its Cache-Control header, its temperature, and what its tenant
wants stored. Pure."""

from typing import Literal, NamedTuple, TypeAlias

Wanted: TypeAlias = Literal["deterministic", "asked"]
"""deterministic: answers to requests with temperature 0, and what is asked for by max-age; asked:
only the latter."""


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
    what is at most N seconds old, and nothing where N is no number. An answer that is drawn at
    random (any temperature but 0) is only cached if the client asks for it with a max-age."""
    by_itself = temperature == 0 and wanted == "deterministic"
    if not cache_control:
        return _ALWAYS if by_itself else _NEVER
    directives = directives_of(cache_control)
    ages = directives.get("max-age", [])
    said = [float(age) for age in ages if age.isascii() and age.isdigit()]
    max_age_s = min(said) if said else None
    may_store = (max_age_s is not None or by_itself) and "no-store" not in directives
    may_read = may_store and "no-cache" not in directives and len(said) == len(ages)
    return CachePolicy(may_read, may_store, max_age_s)


def directives_of(cache_control: str) -> dict[str, list[str]]:
    """By name, in small letters, what each one says behind its "="; a client that writes ";" where
    a "," belongs means the same."""
    found: dict[str, list[str]] = {}
    for part in cache_control.lower().replace(";", ",").split(","):
        name, _, value = part.partition("=")
        found.setdefault(name.strip(), []).append(value.strip().strip('"'))
    return found
