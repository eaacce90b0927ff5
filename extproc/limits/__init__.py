"""What each tenant may use: requests and tokens a minute, requests at once, money.

`rules` are numbers, `book` what one tenant has used and the steps by which that changes; `memory`
and `redis_store` (with `scripts`) keep books, `shared` says what holds while Redis is away;
`limits` is what exchanges meet. Only `redis_store` and `shared` wait for anything.
"""

from extproc.limits.limits import Charged, Grant, Limits, Refused, read_charged
from extproc.limits.memory import Books
from extproc.limits.rules import NANO, Cost, Rules, rules_of
from extproc.limits.spent import stop_streams

__all__ = [
    "NANO",
    "Books",
    "Charged",
    "Cost",
    "Grant",
    "Limits",
    "Refused",
    "Rules",
    "read_charged",
    "rules_of",
    "stop_streams",
]
