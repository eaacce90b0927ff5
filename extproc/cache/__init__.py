"""Answers that need no model. Pure: no gRPC, no HTTP, no clock of its own.

`exact` is what an exchange uses; `request_policy` says what a request allows, `key` where its
answer is filed, `memory` keeps it.
"""

from extproc.cache.exact import ExactCache, Fill, Hit, Lookup

__all__ = ["ExactCache", "Fill", "Hit", "Lookup"]
