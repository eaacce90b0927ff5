"""How the caches of a gateway do: read from where it is kept, when asked."""

from collections import defaultdict
from typing import TYPE_CHECKING

from extproc import wire
from extproc.caching.report import Budget, Embedder, Report, Requests, Semantic, Store
from extproc.gateway import Gateway

if TYPE_CHECKING:  # it needs packages that most do without
    from extproc.cache.semantic.cache import SemanticCache

_TRIED = "Is there a vector for this?"


async def stats(gateway: Gateway) -> Report:
    """Asks the embedder, if there is one, for a vector: that takes its time limit at most."""
    caches = gateway.policy.caches
    if caches is None:
        return Report(None, 0, _tenants(gateway), None)
    store = caches.exact.store.stats()
    return Report(
        store=Store(**store._asdict()),
        under_way=caches.under_way,
        tenants=_tenants(gateway),
        semantic=None if caches.semantic is None else await _semantic(gateway, caches.semantic),
    )


def _tenants(gateway: Gateway) -> dict[str, Requests]:
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for labels, count in gateway.metrics.cache.items():
        result, tenant = labels
        found[tenant][result] = int(count)
    return {tenant: Requests(**counts) for tenant, counts in sorted(found.items())}


async def _semantic(gateway: Gateway, semantic: "SemanticCache") -> Semantic:
    held, budget = semantic.partitions.stats(), semantic.budget
    lookups: defaultdict[str, int] = defaultdict(int)
    for labels, count in gateway.metrics.semantic.items():
        lookups[labels[0]] += int(count)
    return Semantic(
        embedder=await _embedder(semantic),
        questions=held.entries,
        partitions=held.partitions,
        used_bytes=held.used_bytes,
        lookups=dict(lookups),
        budget=Budget(
            checked=budget.checked,
            false=budget.disagreed,
            rate=budget.disagreed / budget.checked if budget.checked else None,
            allowed=budget.budget,
            unchecked=semantic.unchecked,
            off={
                wire.as_written(str(tenant)): _told(*budget.counts(tenant))
                for tenant in budget.off()
            },
        ),
    )


def _told(checked: int, false: int) -> str:
    return f"{false} of {checked} checked hits were false"


async def _embedder(semantic: "SemanticCache") -> Embedder:
    from extproc.embedders import EmbedderUnavailable  # numpy comes with it

    embedder = semantic.embedder
    try:
        await embedder.embed(_TRIED)
    except EmbedderUnavailable as error:
        return Embedder(error.why, str(error), embedder.model)
    return Embedder("ready", "it has a vector for a short text", embedder.model)
