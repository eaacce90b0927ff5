"""What /costs says: the shape alone, for the gateway that writes it and for whoever reads it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Tokens:
    """As in the price: input tokens that were not cached, those that were, output tokens."""

    input: int
    cached_input: int
    output: int


@dataclass(frozen=True, slots=True)
class Cost:
    tenant: str
    feature: str
    model: str
    pool: str
    requests: int
    """Answered by this pool, failures too. What the cache answered cost nothing and is not here."""
    uncounted: int
    """Of them, those whose tokens nobody told: the client left, or the answer was cut."""
    unpriced: int
    """Of them, those whose pool had no price."""
    tokens: Tokens
    """As the servers counted them."""
    input_estimated: int
    output_estimated: int
    """Tokens of uncounted requests, not among `tokens`, but in `usd`."""
    usd: float | None
    """None: no price for any of them."""


@dataclass(frozen=True, slots=True)
class Share:
    requests: int
    usd: float


@dataclass(frozen=True, slots=True)
class Saving:
    lever: str
    requests: int
    usd: float
    counterfactual: str
    """With what the cost is compared, in words."""
    estimated: bool
    by_tenant: dict[str, Share]


@dataclass(frozen=True, slots=True)
class Budgeted:
    """A tenant's budget of now, as this processor knows it. Not since the start: by UTC."""

    tenant: str
    per: str
    usd: float
    spent_usd: float
    """What running requests are expected to cost included."""


@dataclass(frozen=True, slots=True)
class Report:
    """Sums since the processor's start. Costs and savings largest first; what no lever saved alone,
    `together`, last."""

    since: str
    """ISO 8601, UTC."""
    usd: float
    saved_usd: float
    costs: list[Cost]
    savings: list[Saving]
    budgets: list[Budgeted] = field(default_factory=list[Budgeted])

    @property
    def tenants(self) -> list[str]:
        named = [one.tenant for one in (*self.costs, *self.budgets)]
        return sorted({*named, *(name for saving in self.savings for name in saving.by_tenant)})


def report(since: str, costs: Iterable[Cost], savings: Iterable[Saving]) -> Report:
    """In order, with sums."""
    ordered = sorted(costs, key=lambda cost: (-(cost.usd or 0.0), -cost.requests))
    largest = sorted(savings, key=lambda saving: (saving.lever == "together", -saving.usd))
    return Report(
        since=since,
        usd=sum(cost.usd or 0.0 for cost in ordered),
        saved_usd=sum(saving.usd for saving in largest),
        costs=ordered,
        savings=largest,
    )


def of_tenant(whole: Report, tenant: str) -> Report:
    """What of it is this tenant's."""
    budgets = [one for one in whole.budgets if one.tenant == tenant]
    own = report(
        whole.since,
        (cost for cost in whole.costs if cost.tenant == tenant),
        (
            Saving(
                saving.lever,
                share.requests,
                share.usd,
                saving.counterfactual,
                saving.estimated,
                {tenant: share},
            )
            for saving in whole.savings
            if (share := saving.by_tenant.get(tenant))
        ),
    )
    return replace(own, budgets=budgets)
