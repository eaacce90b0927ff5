"""Answers that need no model. Its stores but Redis are pure: no gRPC, no HTTP, no clock of its own.

`caches` is what an exchange uses: `exact`, `flight` and `semantic` in their order. `request_policy`
says what a request allows, `scope` and `key` where its answer is filed, `store` what is asked of
whatever keeps it: `memory`, `redis_store`.
"""

from extproc.cache.caches import BYPASS, Caches, Found
from extproc.cache.exact import ExactCache, Fill, Hit, Query, Times
from extproc.cache.flight import Flight
from extproc.cache.key import Secret
from extproc.cache.scope import Scope, scope_of
from extproc.cache.store import Stats, Store, StoreUnavailable

__all__ = [
    "BYPASS",
    "Caches",
    "ExactCache",
    "Fill",
    "Flight",
    "Found",
    "Hit",
    "Query",
    "Scope",
    "Secret",
    "Stats",
    "Store",
    "StoreUnavailable",
    "Times",
    "scope_of",
]
