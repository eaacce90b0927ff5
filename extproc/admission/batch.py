"""The lane of class batch: what of a pool it may have, how many of it may wait, and which of its
answers are ended where their slots are needed. Never touches a queue or a slot itself.
"""

import math
from collections.abc import Iterable

from extproc.admission.lease import CLASSES, Lease
from extproc.admission.marks import MOST_WAITING, Marks
from extproc.admission.queueing import low_water
from extproc.admission.service_times import ServiceTimes

BATCH = CLASSES.index("batch")

# Before anything was measured.
_FIRST_SERVICE_S = 1.0


def spare_slots(slots: int, share: float) -> int:
    """Of a pool's slots those that batch leaves free: the share rounded up, so one at least, but
    never the last one: batch would not run at all."""
    return min(math.ceil(slots * share), slots - 1)


def waiting_marks(wait_s: float, slots: int, service_s: ServiceTimes) -> Marks:
    """For batch requests that may wait for `wait_s`: as many as `slots` would serve in that time if
    nobody else came. More would wait in vain."""
    mean_s = service_s.mean if service_s.count else _FIRST_SERVICE_S
    high = min(max(int(wait_s * slots / max(mean_s, 1e-3)), 1), MOST_WAITING)
    return Marks(high, low_water(high), high, f"what {slots} slots serve in {wait_s:g} s")


class Stops:
    """The batch answers that are being ended. `grace_s`: how long one may take; what a server has
    not ended by then is counted on no more, and not asked for again."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._until: dict[Lease, float] = {}

    def make_way(self, slots: int, holding: Iterable[Lease], now: float) -> None:
        """Have so many slots given back, those of answers that are being ended among them. Of
        `holding`, oldest first, the batch answers that began last are ended, each once."""
        self._until = {
            lease: until
            for lease, until in self._until.items()
            if now < until and not lease.has_ended
        }
        slots -= sum(lease.held for lease in self._until)
        if slots <= 0:
            return
        for lease in reversed([lease for lease in holding if lease.class_index == BATCH]):
            if lease.stop("batch"):
                self._until[lease] = now + self.grace_s
                slots -= lease.held
                if slots <= 0:
                    return
