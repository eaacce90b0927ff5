"""What happened in a pool between two readings. Pure: only differences and sums."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from extproc.doctor.histogram import NONE, Histogram
from extproc.doctor.reading import (
    GatewayCounts,
    Pool,
    Reading,
    Server,
    ServerCounts,
    Slo,
    servers_of,
    together,
)

_Counts = TypeVar("_Counts", GatewayCounts, ServerCounts)


@dataclass(frozen=True, slots=True)
class Window:
    """Of one pool."""

    pool: str
    now: Pool
    slo: Slo
    gateway: GatewayCounts
    servers: ServerCounts | None
    """All that could be read together; None: none could."""
    ever: GatewayCounts = field(default_factory=GatewayCounts)
    """As `gateway`, since the processor's start."""
    gaps_ever: Histogram = NONE
    """Between two tokens, since the servers' starts."""
    kv_usage: float | None = None
    """The highest that was read."""
    notes: tuple[str, ...] = ()
    """What is missing from these numbers, a sentence each."""
    unread: tuple[str, ...] = ()
    """Why servers could not be read, a sentence each: of a pool with replicas that are down."""

    @property
    def refused(self) -> Counter[str]:
        """Tries that its servers refused in this time, by status; of a pool that has served
        nothing, since the start: without requests it is as broken as before."""
        return self.gateway.refused if self.ever.served else self.ever.refused

    @property
    def preempted(self) -> bool:
        """Whether more answers were preempted than the SLO allows to be late. One that was
        preempted twice counts twice: vLLM does not tell them apart."""
        server = self.servers
        if server is None or not server.preemptions:
            return False
        return server.preemptions > server.prefill.count * (1 - self.slo.percentile)


def window(
    before: Reading | None, after: Reading, pool: str, given: Mapping[str, tuple[str, ...]]
) -> Window:
    """Without `before`: since the start of each process. `pool` must be in `after`."""
    notes: list[str] = []
    then = before.pools.get(pool) if before else None
    gateway, anew = _since(after.pools[pool], then or GatewayCounts())
    if anew:
        notes.append("the processor began anew in the window; only what came after it counts")
    now, unread = _servers(after, pool, given)
    if not after.status.pools[pool].replicas_down:
        notes += [f"{why}; give its address with --server {pool}=URL" for why in unread]
        unread = []
    old: Mapping[str, Server | str] = before.servers if before else {}
    differences: list[ServerCounts] = []
    usages: list[float] = []
    for url, server in now.items():
        if server.missing:
            notes.append(f"{url}/metrics has no {', '.join(server.missing)}; they count as 0")
        earlier = old.get(url)
        if before and not isinstance(earlier, Server):
            notes.append(f"{url} could be read only once, so it does not count")
            continue
        counts = earlier.counts if isinstance(earlier, Server) else ServerCounts()
        difference, anew = _since(server.counts, counts)
        if anew:
            notes.append(f"{url} began anew in the window; only what came after it counts")
        differences.append(difference)
        both = (server.kv_usage, earlier.kv_usage if isinstance(earlier, Server) else None)
        usages += [usage for usage in both if usage is not None]
    return Window(
        pool=pool,
        now=after.status.pools[pool],
        slo=after.status.slo,
        gateway=gateway,
        servers=together(differences) if differences else None,
        ever=after.pools[pool],
        gaps_ever=together(server.counts for server in now.values()).gaps,
        kv_usage=max(usages, default=None),
        notes=tuple(notes),
        unread=tuple(unread),
    )


def _servers(
    after: Reading, pool: str, given: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, Server], list[str]]:
    """Those that could be read, and why others could not."""
    found: dict[str, Server] = {}
    unread: list[str] = []
    for url in servers_of(after.status, pool, given):
        server = after.servers[url]
        if isinstance(server, Server):
            found[url] = server
        else:
            unread.append(server)
    return found, unread


def _since(now: _Counts, then: _Counts) -> tuple[_Counts, bool]:
    """What came after `then`, field by field, and whether the process began anew: then some count
    fell, which none does while its process lives, and all of `now` came after."""
    differences: dict[str, Any] = {}
    for name in (one.name for one in fields(now)):
        new, old = getattr(now, name), getattr(then, name)
        if isinstance(new, Histogram):
            if new.count < old.count:
                return now, True
            differences[name] = new.since(old)
        elif isinstance(new, Counter):
            if not old <= new:
                return now, True
            differences[name] = new - old
        else:
            if new < old:
                return now, True
            differences[name] = new - old
    return type(now)(**differences), False
