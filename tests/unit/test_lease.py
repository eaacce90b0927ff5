"""What a lease promises: it is stopped once, and only where there is an answer to end."""

import pytest

from extproc.admission import Ask, Limiter, Marks


def limiter(slots: int) -> Limiter:
    return Limiter(slots, Marks(9, 4, 99, ""), clock=lambda: 0.0)


async def test_a_lease_is_stopped_once_and_gives_its_slots_back_by_its_end_alone() -> None:
    pool, reasons = limiter(1), []
    lease = pool.enter()
    lease.on_stop = reasons.append
    assert lease.stop("batch")
    assert not lease.stop("budget")
    assert reasons == ["batch"]
    assert (lease.state, pool.in_flight) == ("holding", 1)
    lease.end()
    assert pool.in_flight == 0


async def test_what_is_not_admitted_yet_is_not_stopped() -> None:
    lease = limiter(1).enter()
    assert not lease.stop("batch")


async def test_what_waits_or_has_ended_is_not_stopped() -> None:
    pool = limiter(1)
    pool.enter()
    waiting = pool.enter()
    waiting.on_stop = lambda reason: pytest.fail(reason)
    assert not waiting.stop("batch")
    waiting.end()
    assert not waiting.stop("batch")
    assert waiting.on_stop is None, "the exchange and its lease would keep each other alive"


async def test_the_leases_of_a_tenant_are_those_that_hold_slots_oldest_first() -> None:
    pool = limiter(3)
    first = pool.enter(Ask(tenant="acme"))
    pool.enter(Ask(tenant="other"))
    second = pool.enter(Ask(tenant="acme"))
    pool.enter(Ask(tenant="acme"))  # waits
    assert pool.leases_of("acme") == [first, second]
    first.end()
    assert pool.leases_of("acme")[0] is second
    assert pool.leases_of("nobody") == []
