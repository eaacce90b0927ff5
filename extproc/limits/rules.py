"""What a tenant may use, as numbers to calculate with. Pure; must never keep what was used.

Money is in nanodollars, whole ones: sums in any order are the same. A million tokens at $0.10 make
100 of them for each token.
"""

from datetime import UTC, datetime
from math import ceil
from typing import Literal, NamedTuple, TypeAlias

from extproc.config import BudgetConfig, TenantConfig

NANO = 1_000_000_000

Per: TypeAlias = Literal["day", "month"]
Which: TypeAlias = Literal["requests", "tokens", "concurrent", "budget"]
_DAY_S = 86_400


class Rate(NamedTuple):
    """A token bucket: it fills by `per_s` until it holds `most`."""

    per_minute: int
    per_s: float
    most: float


class Budget(NamedTuple):
    """Nanodollars of one UTC day or month."""

    most: int
    soft: int
    """From here on requests that leave the choice to us go to the small pool."""
    per: Per
    stops: bool
    """Running streams are asked to stop once it is spent."""


class Rules(NamedTuple):
    """None: no limit of that kind. A tenant without any has no Rules."""

    requests: Rate | None = None
    tokens: Rate | None = None
    concurrent: int | None = None
    budget: Budget | None = None


class Cost(NamedTuple):
    """Of one request, estimated or counted."""

    tokens: int
    nano_usd: int


class Levels(NamedTuple):
    """What a tenant has left and uses. Of what has no limit: 0."""

    requests: float = 0.0
    tokens: float = 0.0
    """In the buckets; below 0 where a request cost more than was estimated, or than they hold."""
    running: int = 0
    spent: int = 0
    """Nanodollars in `period`."""
    period: int = 0
    """See period_of."""


class Taken(NamedTuple):
    """What came of a request for all that one exchange needs. `refused`: the first limit that it
    does not fit; then nothing was charged."""

    refused: Which | None
    levels: Levels


def rules_of(tenant: TenantConfig) -> Rules | None:
    rules = Rules(
        _rate(tenant.requests_per_minute, tenant.burst),
        _rate(tenant.tokens_per_minute, tenant.burst),
        tenant.concurrent_requests,
        None if tenant.budget is None else _budget(tenant.budget),
    )
    return None if rules == Rules() else rules


def _rate(per_minute: int | None, burst_s: float) -> Rate | None:
    if per_minute is None:
        return None
    return Rate(per_minute, per_minute / 60, max(per_minute / 60 * burst_s, 1.0))


def _budget(budget: BudgetConfig) -> Budget:
    most = round(budget.usd * NANO)
    return Budget(most, round(most * budget.soft), budget.per, budget.when_spent == "stop")


def refilled(level: float, rate: Rate, passed_s: float) -> float:
    """A clock that was set back fills nothing."""
    return min(level + max(passed_s, 0.0) * rate.per_s, rate.most)


def covers(level: float, cost: float, rate: Rate) -> bool:
    """A cost above what the bucket can ever hold is covered by a full one, and leaves a debt."""
    return level >= min(cost, rate.most)


def retry_after_s(taken: Taken, rules: Rules, cost: Cost) -> float:
    """When what was refused would be granted, if nobody else came first. How long others will hold
    their places nobody knows: 1 s."""
    if taken.refused == "requests" and rules.requests:
        return _until(taken.levels.requests, 1, rules.requests)
    if taken.refused == "tokens" and rules.tokens:
        return _until(taken.levels.tokens, cost.tokens, rules.tokens)
    return 1.0


def _until(level: float, cost: float, rate: Rate) -> float:
    return max(min(cost, rate.most) - level, 0.0) / rate.per_s


# --- periods of a budget --------------------------------------------------------------------------


def period_of(at_s: float, per: Per) -> int:
    """`at_s`: seconds since 1970. Days since then, or months since the year 0."""
    if per == "day":
        return int(at_s // _DAY_S)
    at = datetime.fromtimestamp(at_s, UTC)
    return at.year * 12 + at.month - 1


def ends_at(period: int, per: Per) -> datetime:
    """The first moment after it."""
    if per == "day":
        return datetime.fromtimestamp((period + 1) * _DAY_S, UTC)
    return datetime((period + 1) // 12, (period + 1) % 12 + 1, 1, tzinfo=UTC)


# --- headers --------------------------------------------------------------------------------------


HEADERS = tuple(
    f"{what}-{kind}" for kind in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)
"""Behind `x-ratelimit-`."""


def headers(levels: Levels, rules: Rules) -> tuple[tuple[str, str], ...]:
    """`limit-requests` and the others, as OpenAI names them behind `x-ratelimit-`: what is allowed
    in a minute, what could be used at once, and when the bucket would be full again."""
    told: list[tuple[str, str]] = []
    for name, level, rate in (
        ("requests", levels.requests, rules.requests),
        ("tokens", levels.tokens, rules.tokens),
    ):
        if rate is not None:
            told.append((f"limit-{name}", str(rate.per_minute)))
            told.append((f"remaining-{name}", str(max(int(level), 0))))
            told.append((f"reset-{name}", duration((rate.most - level) / rate.per_s)))
    return tuple(told)


def duration(seconds: float) -> str:
    """As OpenAI writes it: 20ms, 1.5s, 6m0s, 1h0m0s."""
    if seconds <= 0:
        return "0s"
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{ceil(seconds * 1000) / 1000:g}s"
    minutes, rest = divmod(ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
