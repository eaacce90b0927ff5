"""Who is next: requests that wait for a slot, by class, then fairly between tenants. Pure.

Within a class tenants share by weight, counted in tokens, not in requests: start-time fair queueing
(Goyal, Vin, Cheng 1996) with tokens as the work, which is the virtual token counter of Sheng et al.
(Fairness in Serving Large Language Models, 2024) with its lift built in, but for a short credit.
Never decides whether a request may wait at all.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import inf
from typing import Generic, Protocol, TypeVar

# Above so many tenants those are forgotten that owe nothing.
_TENANTS = 1_000
_MOST_TENANTS = 20_000


class Waiting(Protocol):
    """A request in the queue."""

    @property
    def tenant(self) -> str: ...
    @property
    def class_index(self) -> int:
        """0 is served first."""
        ...

    @property
    def share(self) -> float:
        """The tenant's weight, above 0."""
        ...

    @property
    def weight(self) -> int:
        """The slots that it takes."""
        ...

    @property
    def since(self) -> float:
        """When it joined, in seconds of the caller's clock."""
        ...


W = TypeVar("W", bound=Waiting)


class FairQueue(Generic[W]):
    """Nobody of a class is next while somebody of a class before it waits. `starving_s`: a request
    for more slots than are free is passed by others of its class for so long.

    The state is the requests, by class and tenant in order of arrival, and for each tenant the
    virtual time at which what it was granted is paid for (`_paid_until`, in tokens per weight).
    The clock of that virtual time is the latest start of a request granted (`_virtual`). A tenant
    that was idle starts there, less the `credit`: what it left to others earlier than that is lost.
    """

    def __init__(self, classes: int, starving_s: float) -> None:
        self.starving_s = starving_s
        self._by_class: list[dict[str, OrderedDict[W, None]]] = [{} for _ in range(classes)]
        self.credit = 0.0
        """In tokens per weight. It lets a tenant whose requests come in bursts have its share: with
        none, the second request of two takes turns with those of a tenant that floods."""
        self.length = 0
        self.ahead = [0] * classes
        """By class: the requests that are served before one of it that would join now."""
        self._virtual = 0.0
        self._paid_until: dict[str, float] = {}
        self._remembered = _TENANTS

    def __iter__(self) -> Iterator[W]:
        for tenants in self._by_class:
            for waiting in tenants.values():
                yield from waiting

    def add(self, request: W) -> None:
        tenants = self._by_class[request.class_index]
        tenants.setdefault(request.tenant, OrderedDict())[request] = None
        self._count(request.class_index, 1)

    def remove(self, request: W) -> None:
        tenants = self._by_class[request.class_index]
        waiting = tenants[request.tenant]
        del waiting[request]
        if not waiting:
            del tenants[request.tenant]
        self._count(request.class_index, -1)

    def _count(self, class_index: int, one: int) -> None:
        self.length += one
        for index in range(class_index, len(self.ahead)):
            self.ahead[index] += one

    def next(self, now: float, rooms: Sequence[int]) -> W | None:
        """Whose turn it is; it stays in the queue. None: nobody waits.

        `rooms`: by class the slots that are free for it. Those that fit may pass a heavier one
        whose turn it is, until that has waited for `starving_s`: else slots would idle for long,
        again and again.
        """
        for tenants, room in zip(self._by_class, rooms, strict=True):
            first = self._first(tenants, inf)
            if first is not None:
                if first.weight <= room or now - first.since >= self.starving_s:
                    return first
                return self._first(tenants, room) or first
        return None

    def _first(self, tenants: dict[str, OrderedDict[W, None]], room: float) -> W | None:
        """Of those that fit, the one that starts earliest; of several who came first. Thousands of
        tenants may wait, most of them for their first request: who owes nothing ends the search."""
        earliest = max(self._virtual - self.credit, 0.0)
        found, found_at = None, inf
        for tenant, waiting in tenants.items():
            head = next(iter(waiting))
            if head.weight <= room:
                at = self._paid_until.get(tenant, 0.0)
                if at <= earliest:
                    return head
                if at < found_at:
                    found, found_at = head, at
        return found

    def of_class(self, class_index: int) -> Iterator[W]:
        for waiting in self._by_class[class_index].values():
            yield from waiting

    def newest_of_lowest_class(self, above: int) -> W | None:
        """The last that joined among the lowest class below class `above`, if any waits."""
        for index in range(len(self._by_class) - 1, above, -1):
            if tenants := self._by_class[index]:
                return max(map(_last, tenants.values()), key=_since)
        return None

    def newest_of(self, tenant: str, class_index: int) -> W | None:
        """The last that joined of this tenant and class."""
        waiting = self._by_class[class_index].get(tenant)
        return _last(waiting) if waiting else None

    def charge(self, tenant: str, tokens: float, share: float) -> None:
        """The tenant is granted a request that will take so many tokens, as far as is known."""
        start = self._start(tenant)
        if start > self._virtual:
            self._virtual = start
        self._paid_until[tenant] = start + tokens / share
        if len(self._paid_until) > self._remembered:
            self._forget_idle()

    def correct(self, tenant: str, tokens: float, share: float) -> None:
        """What a charged request took turned out to be so many tokens more, or fewer."""
        if tenant in self._paid_until:
            self._paid_until[tenant] += tokens / share

    def _start(self, tenant: str) -> float:
        paid_until, idle = self._paid_until.get(tenant, 0.0), self._virtual - self.credit
        return paid_until if paid_until > idle else idle

    def _forget_idle(self) -> None:
        """A tenant that has paid for all by then starts there, remembered or not."""
        idle = self._virtual - self.credit
        owing = {tenant: at for tenant, at in self._paid_until.items() if at > idle}
        if len(owing) > _MOST_TENANTS:  # of so many nobody has much: forget all
            owing.clear()
        self._paid_until = owing
        self._remembered = max(_TENANTS, 2 * len(owing))


def _last(waiting: "OrderedDict[W, None]") -> W:
    return next(reversed(waiting))


def _since(request: Waiting) -> float:
    return request.since
