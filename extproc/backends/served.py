"""Whether a server serves the model that a pool says, in words for the operator.

Pure. What a server calls its models is not to be trusted: few names, cut, and no signs that a
terminal would obey.
"""

from collections.abc import Collection

_MOST_NAMES = 5
_LONGEST_NAME = 100


def not_served(url: str, pool: str, model: str, served: Collection[str]) -> str | None:
    """None: it is served, or the server names nothing at all."""
    if model in served or not served:
        return None
    names = ", ".join(_shown(name) for name in list(served)[:_MOST_NAMES])
    more = len(served) - _MOST_NAMES
    return (
        f"pool {pool}: its server {url} does not serve {_shown(model)}, the model that the policy "
        f"says; it serves {names}{f' and {more} more' if more > 0 else ''}. It refuses all "
        f"requests of this pool until pools.{pool}.model says what it serves"
    )


def _shown(name: str) -> str:
    cleaned = "".join(sign if sign.isprintable() else "?" for sign in name[:_LONGEST_NAME])
    return f"'{cleaned}'"
