"""The faults a test can switch on at run time, and the draw of those that strike one request.

Decides only. Must never touch a socket or a response: `api.py` acts out what is drawn here.
"""

import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

_STATUSES = frozenset(status.value for status in HTTPStatus if status >= 400)
_AFTER_KINDS = ("reset_after", "stall_after", "error_event_after")
KINDS = {
    "latency_ms": "milliseconds before anything is answered",
    "status": "an HTTP status of 400 or more instead of an answer",
    "reset_before": "true: TCP reset before any byte of the response",
    "reset_after": "that many tokens, then TCP reset",
    "stall_after": "that many tokens, then silence, deaf to aborts",
    "error_event_after": "that many tokens, then an error event (no stream: 500)",
    "ignore_aborts": "true: abort_requests answers 200 and does nothing",
}
"""What each does; `forebay sim --help` prints it."""
_MEMBERS = frozenset({"value", "probability", "count", "retry_after"})


class FaultError(ValueError):
    """The description of the faults is not understood; the message names the member."""


class After(NamedTuple):
    """What happens to an answer when the token after its first `tokens` was due."""

    kind: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Strike:
    """What hits one request, in the order in which it is acted out; falsy members do not."""

    latency_s: float = 0.0
    status: int | None = None
    retry_after: float | None = None
    reset_before: bool = False
    after: After | None = None


@dataclass(slots=True)
class _Fault:
    value: Any
    probability: float
    count: int | None
    retry_after: float | None


class Faults:
    """The faults that are on. The description, in JSON:

    {KIND: VALUE or {"value": VALUE, "probability": 0..1, "count": N}, ...} with the KINDS above.
    `status` may also have the member "retry_after" (seconds, for the Retry-After header).

    `probability` (default 1) is drawn for each request. `count` limits a fault to the next N
    requests, whether or not it strikes them. What comes after VALUE tokens comes when the next one
    was due; an answer too short for that ends normally; tokens are counted per choice. If several
    "after" faults strike, the first in the list acts. For ignore_aborts, the requests that count
    are those to the abort endpoint.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._on: dict[str, _Fault] = {}

    def replace(self, description: object) -> None:
        """Switch on exactly what is described. Raises FaultError and changes nothing if wrong."""
        if not isinstance(description, dict):
            raise FaultError("want a JSON object of faults; {} clears all")
        self._on = {kind: _parse(kind, value) for kind, value in description.items()}

    def describe(self) -> dict[str, dict[str, Any]]:
        """What is on, in the long form that `replace` takes; counts are what remains."""
        shown: dict[str, dict[str, Any]] = {}
        for kind, fault in self._on.items():
            shown[kind] = {"value": fault.value, "probability": fault.probability}
            if fault.count is not None:
                shown[kind]["count"] = fault.count
            if fault.retry_after is not None:
                shown[kind]["retry_after"] = fault.retry_after
        return shown

    def strike(self) -> Strike:
        """Draw the faults of one request to the model; uses up counts."""
        latency = self._draw("latency_ms")
        status = self._draw("status")
        reset_before = self._draw("reset_before")
        afters = [(kind, self._draw(kind)) for kind in _AFTER_KINDS]
        return Strike(
            latency_s=latency.value / 1000 if latency else 0.0,
            status=status.value if status else None,
            retry_after=status.retry_after if status else None,
            reset_before=reset_before is not None,
            after=next((After(kind, fault.value) for kind, fault in afters if fault), None),
        )

    def ignores_abort(self) -> bool:
        """Draw for one call of the abort endpoint."""
        return self._draw("ignore_aborts") is not None

    def _draw(self, kind: str) -> _Fault | None:
        fault = self._on.get(kind)
        if fault is None:
            return None
        if fault.count is not None:
            fault.count -= 1
            if fault.count == 0:
                del self._on[kind]
        return fault if self._random.random() < fault.probability else None


def _parse(kind: str, given: object) -> _Fault:
    """One fault from its short or long form."""
    if kind not in KINDS:
        raise FaultError(f"{kind}: unknown fault; the kinds are {', '.join(KINDS)}")
    members: dict[str, Any] = given if isinstance(given, dict) else {"value": given}
    for name in members:
        if name not in _MEMBERS or (name == "retry_after" and kind != "status"):
            raise FaultError(f"{kind}.{name}: unknown member")
    value = members.get("value")
    probability = members.get("probability", 1.0)
    count = members.get("count")
    retry_after = members.get("retry_after")
    if not _fits(kind, value):
        raise FaultError(f"{kind}: {value!r} is not a value it can take")
    if not _is_number(probability) or not 0 <= probability <= 1:
        raise FaultError(f"{kind}.probability: must be a number from 0 to 1")
    if count is not None and (type(count) is not int or count < 1):
        raise FaultError(f"{kind}.count: must be a whole number of at least 1")
    if retry_after is not None and (not _is_number(retry_after) or retry_after < 0):
        raise FaultError(f"{kind}.retry_after: must be a number of seconds")
    return _Fault(value, float(probability), count, retry_after)


def _fits(kind: str, value: Any) -> bool:
    if kind in ("reset_before", "ignore_aborts"):
        return value is True
    if kind == "latency_ms":
        return _is_number(value) and value >= 0
    if kind == "status":
        return type(value) is int and value in _STATUSES
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value == value and abs(value) != float("inf")
