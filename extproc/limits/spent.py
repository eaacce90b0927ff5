"""A budget that is spent ends its tenant's running streams, as a deadline does. Decides nothing."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable


class Stoppable(Protocol):
    def stop(self, reason: str) -> object: ...


@runtime_checkable
class HoldsLeases(Protocol):
    def leases_of(self, tenant: str) -> Iterable[Stoppable]: ...


def stop_streams(limiters: Iterable[object], tenant_id: str) -> None:
    """Ask each running answer of this tenant to end, with `budget` as the reason. A limiter without
    leases to be stopped is passed by."""
    for limiter in limiters:
        if isinstance(limiter, HoldsLeases):
            for lease in tuple(limiter.leases_of(tenant_id)):
                lease.stop("budget")
