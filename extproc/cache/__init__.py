"""Answers that need no model. Its stores but Redis are pure: no gRPC, no HTTP, no clock of its own.

`exact` is what an exchange uses; `request_policy` says what a request allows, `scope` and `key`
where its answer is filed, `store` what is asked of whatever keeps it: `memory`, `redis_store`.
"""

from extproc.cache.exact import ExactCache, Fill, Hit, Lookup, Times
from extproc.cache.key import Secret
from extproc.cache.scope import Scope, scope_of
from extproc.cache.store import Stats, Store, StoreUnavailable

__all__ = [
    "ExactCache",
    "Fill",
    "Hit",
    "Lookup",
    "Scope",
    "Secret",
    "Stats",
    "Store",
    "StoreUnavailable",
    "Times",
    "scope_of",
]
