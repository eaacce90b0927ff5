"""The slots of one pool and the queue before them.

A lease is the only handle that a request has: `enter` makes it, and `Lease.end` is the only place
where slots or a place in the queue are given back. The state is the leases (`_holding`, `_queue`)
and the sums over them (some in `_claims`), which `audit` proves.
"""

from collections.abc import Callable
from dataclasses import dataclass

from extproc.admission.batch import BATCH, Stops, spare_slots
from extproc.admission.claims import Claims
from extproc.admission.fair_queue import FairQueue
from extproc.admission.gate import Gate
from extproc.admission.lease import CLASSES, Ask, Lease
from extproc.admission.marks import Marks
from extproc.admission.retry_after import RetryAfter
from extproc.admission.service_times import ServiceTimes

# Before anything was measured: a guess that only feeds the first Retry-After values.
_FIRST_SERVICE_S = 1.0
# How much one request moves the mean of their tokens.
_TOKENS_WEIGHT = 0.02
_MOST_SCHEDULES = 1_000
# How many may wait above the high mark with nothing but a claim: one for so many slots.
_SLOTS_PER_CLAIM = 8
# A lease may live so long after its last moment before it counts as leaked: timers are late
# where the event loop is.
_LATE_S = 5.0


class Shed(Exception):
    """The request may not wait, or not any longer."""


_ANYBODY = Ask()


@dataclass(frozen=True, slots=True)
class Audit:
    """What must be 0 at any moment."""

    leaked: tuple[Lease, ...]
    """Leases that live on after their last moment."""
    drift: int
    """How far the sums are from what the leases say, slots, requests and bytes together."""


class Limiter:
    """`slots` in all. A request that does not find as many free as it weighs queues, if the gate of
    its class lets it: within bounds, fairly between tenants (see FairQueue), and a heavy one whose
    turn it is is overtaken for a bounded time only.

    Batch has a lane of its own: it gets a slot only while nobody else waits, here or in the
    servers, and leaves `spare` slots free. So nobody waits behind it but for those that run, and
    what of it waits counts for no other gate than its own.

    A tenant that has less than its share of the slots and of the low mark together may queue also
    while the gate is shut, while others have more than theirs: it takes the place of the newest
    request of the tenant that has most. (So many may wait at any time.)
    """

    def __init__(
        self,
        slots: int,
        marks: Marks,
        clock: Callable[[], float],
        *,
        starving_s: float = float("inf"),
        most_bytes: int = 2**63,
    ) -> None:
        self.slots = slots
        self.spare = 0
        """Slots that batch leaves free."""
        self.most_weights = (slots, slots)
        """By class: the slots that one request may take."""
        self._replica_slots = slots
        self._spare_share = 0.0
        self._stops: Stops | None = None
        self.marks = marks
        """Of the first class."""
        self.batch_marks = marks
        self.clock = clock
        self.most_bytes = most_bytes
        self.gates = tuple(Gate(0, 0) for _ in CLASSES)
        self.service_s = ServiceTimes()
        """How long slots are held."""
        self.service_s.set_slots(slots)
        self.foreign_waiting = 0
        """Requests that wait in the servers and are not ours."""
        self._told_before = 0
        self._foreign_before = 0
        self.inherited = 0
        """Slots taken by what the servers ran when we started; see `inherit`."""
        self._tokens_mean = 0.0
        """What a request takes for each of its slots, as estimated."""
        self._held = 0
        self._sequences = 0  # of all that hold slots: a request may make more than it has slots
        self._waiting_bytes = 0
        self._retry_after: dict[str, RetryAfter] = {}  # by tenant
        self._holding: dict[Lease, None] = {}
        self._queue: FairQueue[Lease] = FairQueue(len(CLASSES), starving_s)
        self._claims = Claims()
        self.set_marks(marks)

    # --- what is so now ---------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Slots that are leased."""
        return self._held

    @property
    def sequences(self) -> int:
        """What the leases make in the servers."""
        return self._sequences

    @property
    def waiting(self) -> int:
        """Requests that wait here for a slot."""
        return self._queue.length

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def depth(self) -> int:
        """Requests that wait here, or in the servers beside our own; none of class batch."""
        return self.depth_of(0)

    def depth_of(self, class_index: int) -> int:
        """What a request of this class would wait behind."""
        return self._queue.ahead[class_index] + self.foreign_waiting

    @property
    def batch_waiting(self) -> int:
        """Requests of class batch that wait here."""
        return self._queue.length - self._queue.ahead[0]

    @property
    def shedding(self) -> bool:
        return self.gates[0].shedding

    @property
    def mean_service_s(self) -> float | None:
        """None: no lease has ended yet."""
        return self.service_s.mean if self.service_s.count else None

    @property
    def turn_s(self) -> float:
        """Seconds between two departures from busy slots, as measured."""
        return (self.mean_service_s or _FIRST_SERVICE_S) / self.slots

    def drain_s(self, class_index: int = 0) -> float:
        """Seconds until the queue has drained to the low mark and a slot turns over. Grows with the
        depth."""
        beyond = self.depth_of(class_index) - self._marks_of(class_index).low
        return (max(beyond, 0) + 1) * self.turn_s

    def retry_after_s(self, tenant: str, share: float, uniform: float, class_index: int = 0) -> int:
        """What to tell one shed client: see RetryAfter. Each tenant has its own schedule, at its
        share of the turns: who ignores what it is told makes nobody else wait."""
        if len(self._retry_after) > _MOST_SCHEDULES:
            self._retry_after.clear()
        schedule = self._retry_after.setdefault(tenant, RetryAfter())
        turn_s = self.turn_s * max(self._claims.shares / share, 1.0)
        return schedule.tell(
            now=self.clock(), drain_s=self.drain_s(class_index), turn_s=turn_s, uniform=uniform
        )

    def has_room(self, class_index: int) -> bool:
        """Whether a light request of this class would not have to wait."""
        return not self.depth_of(class_index) and self._room(class_index) > 0

    def is_full(self, class_index: int) -> bool:
        """At the hard mark, where not even the body is read of what would have to wait."""
        return self.depth_of(class_index) >= self._marks_of(class_index).hard

    def _marks_of(self, class_index: int) -> Marks:
        return self.batch_marks if class_index == BATCH else self.marks

    def sheds(self, ask: Ask) -> bool:
        """Whether this request would be shed now; `enter` may still find otherwise."""
        index = ask.class_index
        if self.has_room(index):
            return False
        if self.is_full(index):
            return True
        gate = self.gates[index]
        if not gate.shedding and self.depth_of(index) < gate.high_water:
            return False
        return not self._has_a_claim(ask) or (self._most_served(ask) is None and self._is_crowded)

    def refuse(self, ask: Ask) -> None:
        """It is shed without having entered: the gate is to know."""
        self.gates[ask.class_index].refuses(self.depth_of(ask.class_index), self.clock())

    def leases_of(self, tenant: str) -> list[Lease]:
        """Those of a tenant that hold slots, in the order in which they got them."""
        return [lease for lease in self._holding if lease.ask.tenant == tenant]

    def oldest_s(self) -> float | None:
        """How long the lease that has held its slots longest has done so; None: there is none."""
        oldest = next(iter(self._holding), None)
        return None if oldest is None else self.clock() - oldest.since

    def audit(self) -> Audit:
        now = self.clock()
        leaked = [lease for lease in self._holding if now > lease.ask.ends_by + _LATE_S]
        queued = list(self._queue)
        leaked += [lease for lease in queued if now > lease.ask.ends_by + _LATE_S]
        drift = abs(self._held - sum(lease.held for lease in self._holding))
        drift += abs(self._sequences - sum(lease.ask.weight for lease in self._holding))
        drift += abs(self._waiting_bytes - sum(lease.ask.size_bytes for lease in queued))
        asked = sum(lease.ask.weight for lease in (*self._holding, *queued))
        drift += abs(asked - self._claims.slots)
        return Audit(tuple(leaked), drift)

    # --- entering ---------------------------------------------------------------------------------

    def enter(self, ask: Ask = _ANYBODY) -> Lease:
        """A lease that holds its slots or queues for them; raises Shed."""
        now = self.clock()
        index = ask.class_index
        lease = Lease(self, ask, now)
        is_free = not self._queue.ahead[index] and self._fits(lease.weight, index)
        if not is_free or self.foreign_waiting:
            self._make_room(ask, now)
        self._claims.add(ask)
        if is_free:
            self._take(lease, now)
            return lease
        lease.queue_up(self._queue.ahead[index] + 1)  # somebody may have given way
        self._queue.add(lease)
        self._waiting_bytes += ask.size_bytes
        self._fill(now)  # it may pass a heavier one
        return lease

    def _make_room(self, ask: Ask, now: float) -> None:
        """Return if the request may join the queue, whose place ever it takes, or raise Shed."""
        index = ask.class_index
        if self.is_full(index) or ask.size_bytes > self.most_bytes:
            raise Shed
        if self.gates[index].refuses(self.depth_of(index), now):
            if not self._has_a_claim(ask):
                raise Shed
            other = self._most_served(ask)
            if other is not None:
                other.push_out()
            elif self._is_crowded:
                raise Shed
        while self._waiting_bytes + ask.size_bytes > self.most_bytes:
            other = self._queue.newest_of_lowest_class(above=index)
            if other is None and self._has_a_claim(ask):
                other = self._most_served(ask)
            if other is None:
                raise Shed
            other.push_out()

    def _most_served(self, ask: Ask) -> Lease | None:
        """Who waits and gives way to this claim."""
        return self._claims.of_the_most_served(ask, self._queue.newest_of)

    @property
    def _is_crowded(self) -> bool:
        """Too many wait for one more by a claim, where nobody gives way: those who have more than
        their share hold slots."""
        return self.depth >= self.marks.high + max(self.slots // _SLOTS_PER_CLAIM, 1)

    def _has_a_claim(self, ask: Ask) -> bool:
        places = self.marks.low * self._tokens_mean * ask.weight / max(ask.tokens, 1)
        return self._claims.has(ask, self.slots, places)

    # --- leaving ----------------------------------------------------------------------------------

    def take_back(self, lease: Lease, state: str) -> None:
        """For Lease.end alone. `state`: what the lease was before."""
        now = self.clock()
        ask = lease.ask
        self._claims.remove(ask)
        if state == "holding":
            self.service_s.were_held(self._held, now)
            self.service_s.ended(now - lease.since)
            del self._holding[lease]
            self._held -= lease.held
            self._sequences -= ask.weight
        else:
            self._unqueue(lease)
        self._fill(now)

    def _fill(self, now: float) -> None:
        """Grant what fits, in turn, and tell the gates."""
        while self._queue.length:
            rooms = self._room(0), self._room(BATCH)
            lease = self._queue.next(now, rooms) if max(rooms) > 0 else None
            if lease is None or not self._fits(lease.weight, lease.class_index):
                break
            self._unqueue(lease)
            self._take(lease, now)
        for index, gate in enumerate(self.gates):
            if gate.shedding:
                gate.drained_to(self.depth_of(index), now)
        if self._stops is not None and self._queue.ahead[0]:
            self._make_way(self._stops, now)

    def _unqueue(self, lease: Lease) -> None:
        self._queue.remove(lease)
        self._waiting_bytes -= lease.ask.size_bytes

    def _make_way(self, stops: Stops, now: float) -> None:
        """Those who wait and are not batch need slots that batch has."""
        wanted = sum(lease.weight for lease in self._queue.of_class(0))  # not the long batch queue
        lacking = wanted - self._room(0)
        if lacking > 0:
            stops.make_way(lacking, self._holding, now)

    def _fits(self, slots: int, class_index: int) -> bool:
        taken = self._held + self.inherited + slots
        if class_index != BATCH:
            return taken <= self.slots
        return taken <= self.slots - self.spare and not self.foreign_waiting

    def _room(self, class_index: int) -> int:
        """The slots that are free for this class, if nothing else keeps it waiting."""
        free = self.slots - self._held - self.inherited
        return free - self.spare if class_index == BATCH else free

    def _take(self, lease: Lease, now: float) -> None:
        ask = lease.ask
        slots = lease.weight
        self.service_s.were_held(self._held, now)
        self._held += slots
        self._holding[lease] = None
        self._sequences += ask.weight
        tokens = of_slot = ask.tokens
        if ask.weight > 1:  # slots have idled until enough were free: an average request for each
            of_slot = tokens / ask.weight
            tokens = max(tokens, slots * self._tokens_mean)
        mean = self._tokens_mean or of_slot
        self._tokens_mean = mean = mean + _TOKENS_WEIGHT * (of_slot - mean)
        # As much as it would hold now, had it used its share of the slots.
        self._queue.credit = self.slots * mean / self._claims.shares
        self._queue.charge(ask.tenant, tokens, ask.share)
        lease.grant(slots, now)

    # --- what others tell it ----------------------------------------------------------------------

    def set_slots(self, slots: int, most_weight: int | None = None) -> None:
        """From now on. Leases above a smaller number run to their end. `most_weight`: the slots of
        one replica, which is all that a request can run on. None: all slots."""
        self.slots = slots
        self._replica_slots = slots if most_weight is None else min(most_weight, slots)
        self.service_s.set_slots(slots)
        self._set_spare()

    def set_lane(self, spare: float, stops_within_s: float | None) -> None:
        """Of batch: the share of the slots that it leaves free, and how long its answers may take
        to end where others need their slots. None: they run to their end."""
        self._spare_share = spare
        if stops_within_s is None:
            self._stops = None
        elif self._stops is None:
            self._stops = Stops(stops_within_s)
        else:
            self._stops.grace_s = stops_within_s
        self._set_spare()

    def _set_spare(self) -> None:
        self.spare = spare_slots(self.slots, self._spare_share)
        most = self._replica_slots
        self.most_weights = (most, min(most, self.slots - self.spare))
        self._fill(self.clock())

    def set_marks(self, marks: Marks, dwell_s: float = 0.0, batch: Marks | None = None) -> None:
        """`batch`: of class batch. None: half of the others', so that it sheds first."""
        self.marks = marks
        self.batch_marks = batch or marks._replace(high=marks.high // 2, low=marks.low // 2)
        for gate, own in zip(self.gates, (self.marks, self.batch_marks), strict=True):
            gate.dwell_s = dwell_s
            gate.set_marks(own.high, own.low)
        self._fill(self.clock())

    def set_queue(self, starving_s: float, most_bytes: int) -> None:
        """For FairQueue; and the bytes that all waiting requests may hold together."""
        self._queue.starving_s = starving_s
        self.most_bytes = most_bytes

    def correct(self, tenant: str, share: float, tokens: int) -> None:
        """A request of this tenant took so many tokens more than it asked for, or fewer."""
        self._queue.correct(tenant, tokens, share)

    def see_servers(self, running: int, waiting: int, ours: int) -> None:
        """What the servers said that they have, and our sequences in them at that moment. Their
        queue beyond ours counts as depth: `running + waiting` less ours is not ours; at most
        `waiting` of it waits. A server is a little behind us, or before: what it says counts where
        it says so twice."""
        foreign = max(running + waiting - ours, 0)
        self.inherited = min(self.inherited, max(foreign, self._foreign_before))
        self._foreign_before = foreign
        told = min(waiting, max(foreign - self.inherited, 0))
        self.foreign_waiting = min(told, self._told_before)
        self._told_before = told
        self._fill(self.clock())

    def inherit(self, slots: int) -> None:
        """Count so many slots as taken by requests that were admitted before we started. They are
        free as soon as the servers have fewer (`see_servers`), or with `inherit(0)`."""
        self.inherited = self._foreign_before = min(slots, self.slots)
        self._fill(self.clock())
