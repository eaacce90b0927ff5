"""How an answer ended, from what Envoy logged of it, and which server that makes suspicious. Pure.

Streams pass by unread. Envoy sees an error event in one; that a stream merely stopped is inferred:
a vLLM server counts the tokens of every answer that it ends, and of none that it does not.
"""

from collections.abc import Callable
from typing import Literal

Ending = Literal["whole", "error", "reset", "cut", "client_left", "processor_died"]
"""Of the server's answer. whole: as the server ended it, also where we asked it to, or we did at
the deadline or by a stop. error: a status of 500 or more, an error event in a stream, or a stream
without the usage and the [DONE] that end it. reset: the server's connection broke. cut: by a time
limit. client_left: before the end. processor_died: by way of which the answer passed."""

# Envoy's response flags.
_LIMITS = frozenset(("UT", "SI", "DT", "UMSDR"))
_RESETS = frozenset(("UC", "UR", "UF", "UPE", "LR"))
_CLIENT = frozenset(("DC", "DR", "DPE"))

# So many bad endings in a row, no good one between them, and the server is left alone for a while.
_BAD_IN_A_ROW = 3
_FIRST_S = 5.0
_LONGEST_S = 60.0


# Where the guard ended a stream, and wrote an end to it. The first three: since we wanted it so.
_OF_GUARD: dict[str, Ending] = {
    "deadline": "whole",
    "batch": "whole",
    "budget": "whole",
    "stall": "cut",
    "upstream_error": "error",
}


def ending(
    status: int,
    details: str,
    flags: str,
    *,
    ended_by_us: str,
    has_failed: bool,
    has_usage: bool,
    usage_expected: bool,
) -> Ending:
    """`details` and `flags`: Envoy's response code details and flags (`UC,URX`). `ended_by_us`:
    why the guard ended a stream, or empty. `has_failed`: an error event was seen in it.
    `usage_expected`: the pool's servers are asked for the usage of every stream, and it is counted
    as it passes."""
    if ended_by_us:
        return _OF_GUARD.get(ended_by_us, "error")
    if flags != "-":
        told = frozenset(flags.split(","))
        if told & _CLIENT:
            return "client_left"
        if told & _LIMITS:
            return "cut"
        if told & _RESETS:
            return "reset"
    if details.startswith("ext_proc_error"):
        return "processor_died"
    if details == "forebay_upstream_stall":
        return "cut"
    if status >= 500 or has_failed:
        return "error"
    return "error" if status == 200 and usage_expected and not has_usage else "whole"


class Suspicion:
    """Counts bad endings by server. `suspect(url, seconds)` is called for one that had
    _BAD_IN_A_ROW of them: first for 5 s, then for twice as long each time, up to a minute; a whole
    answer clears it."""

    def __init__(self, suspect: Callable[[str, float], None]) -> None:
        self._suspect = suspect
        self._bad: dict[str, int] = {}  # in a row; servers without any are not kept

    def saw(self, url: str, how: Ending) -> None:
        if how == "whole":
            self._bad.pop(url, None)
        elif how not in ("client_left", "processor_died"):
            bad = self._bad[url] = self._bad.get(url, 0) + 1
            if bad >= _BAD_IN_A_ROW:
                again = bad - _BAD_IN_A_ROW
                self._suspect(url, min(_FIRST_S * 2.0**again, _LONGEST_S))
