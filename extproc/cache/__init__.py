"""Answers that need no model. Pure: no gRPC, no HTTP, no clock of its own.

`request_policy` says what a request allows, `key` where its answer is filed, `memory` keeps it.
"""

from extproc.cache.key import exact_key
from extproc.cache.memory import Entry, MemoryStore
from extproc.cache.request_policy import CachePolicy, cache_policy

__all__ = ["CachePolicy", "Entry", "MemoryStore", "cache_policy", "exact_key"]
