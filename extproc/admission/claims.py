"""What each tenant holds and waits for, and who may therefore queue while the gate is shut.

Rules and sums only: nothing here grants a slot or moves a place in the queue.
"""

from collections.abc import Callable
from typing import TypeVar

from extproc.admission.lease import CLASSES, Ask

L = TypeVar("L")


class Claims:
    """By class and tenant the slots that are held or waited for, `audit`ed by the limiter.

    A tenant of the first class that has less than its share, while another has more than that, may
    queue at any time: it has a claim.
    """

    __slots__ = ("_by_class", "shares")

    def __init__(self) -> None:
        self._by_class: tuple[dict[str, _Used], ...] = tuple({} for _ in CLASSES)  # by tenant
        self.shares = 0.0
        """Of all who hold or wait."""

    @property
    def slots(self) -> int:
        """Held or waited for, by all."""
        return sum(used.slots for of_class in self._by_class for used in of_class.values())

    def add(self, ask: Ask) -> None:
        of_class = self._by_class[ask.class_index]
        used = of_class.get(ask.tenant)
        if used is None:
            used = of_class[ask.tenant] = _Used(ask.share)
            self.shares += used.share
        elif used.share != ask.share:  # the policy has changed
            self.shares += ask.share - used.share
            used.share = ask.share
        used.slots += ask.weight

    def remove(self, ask: Ask) -> None:
        of_class = self._by_class[ask.class_index]
        used = of_class[ask.tenant]
        used.slots -= ask.weight
        if not used.slots:
            del of_class[ask.tenant]
            # Exactly 0 when there is none: a sum of floats strays.
            self.shares = self.shares - used.share if any(self._by_class) else 0.0

    def has(self, ask: Ask, slots: int, places: float) -> bool:
        """Of the tenants of its class, in the first class alone. A first request is within any
        share, if another tenant has more than that. `slots` are shared, and `places` in the queue,
        in requests as long as this one: the queue's share counts in tokens, so behind long requests
        of its own a tenant waits longer than the marks mean."""
        if ask.class_index != 0:
            return False
        wanted = self._would_use(ask)
        shares, other_has_more = ask.share, False
        for tenant, used in self._by_class[0].items():
            if tenant != ask.tenant:
                shares += used.share
                other_has_more |= used.slots / used.share > wanted / ask.share
        return other_has_more and wanted <= max((slots + places) * ask.share / shares, ask.weight)

    def of_the_most_served(self, ask: Ask, newest_of: Callable[[str, int], L | None]) -> L | None:
        """Who gives way to a claim: the newest request (`newest_of` a tenant and class, if any
        waits) of the tenant that has most, and more than this one would have."""
        most, found = self._would_use(ask) / ask.share, None
        for tenant, used in self._by_class[0].items():
            if used.slots / used.share > most:
                newest = newest_of(tenant, 0)
                if newest is not None:
                    most, found = used.slots / used.share, newest
        return found

    def _would_use(self, ask: Ask) -> int:
        used = self._by_class[0].get(ask.tenant)
        return ask.weight + (used.slots if used else 0)


class _Used:
    """What one tenant holds and waits for."""

    __slots__ = ("share", "slots")

    def __init__(self, share: float) -> None:
        self.share = share
        self.slots = 0
