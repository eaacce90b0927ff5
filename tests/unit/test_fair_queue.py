"""Who is next, without a limiter: the search gives what a plain look at all heads would, and does
not look at thousands of tenants to find it."""

import time
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from extproc.admission.fair_queue import FairQueue


@dataclass(eq=False)
class Request:
    tenant: str
    weight: int = 1
    class_index: int = 0
    share: float = 1.0
    since: float = 0.0


_steps = st.lists(
    st.tuples(
        st.sampled_from(("add", "grant", "correct")),
        st.sampled_from("abcd"),
        st.integers(1, 3),
        st.integers(1, 500),
    ),
    max_size=60,
)


@given(_steps, st.integers(0, 3), st.sampled_from((0.0, 40.0, 1000.0)))
def test_the_tenant_that_starts_earliest_is_next_and_of_several_who_came_first(
    steps: list[tuple[str, str, int, int]], room: int, credit: float
) -> None:
    queue = FairQueue[Request](1, starving_s=1e9)
    waiting: list[Request] = []
    for step, tenant, weight, tokens in steps:
        queue.credit = credit
        if step == "add":
            waiting.append(Request(tenant, weight))
            queue.add(waiting[-1])
        elif step == "correct":
            queue.correct(tenant, -tokens / 10, 1.0)
        elif (granted := queue.next(0.0, (room,))) is not None:
            assert granted is plainly_next(queue, waiting, room)
            queue.remove(granted)
            waiting.remove(granted)
            queue.charge(granted.tenant, tokens, 1.0)


def plainly_next(queue: FairQueue[Request], waiting: list[Request], room: int) -> Request:
    tenants = queue._by_class[0]  # pyright: ignore[reportPrivateUsage]
    heads = [next(one for one in waiting if one.tenant == tenant) for tenant in tenants]
    first = min(heads, key=lambda head: start_of(queue, head))
    if first.weight <= room:
        return first
    fitting = [head for head in heads if head.weight <= room]
    return min(fitting, key=lambda head: start_of(queue, head), default=first)


def start_of(queue: FairQueue[Request], head: Request) -> float:
    return queue._start(head.tenant)  # pyright: ignore[reportPrivateUsage]


def test_thousands_of_tenants_that_wait_do_not_make_a_turn_long() -> None:
    queue = FairQueue[Request](1, starving_s=10)
    queue.credit = 1000.0
    for number in range(5000):
        queue.add(Request(f"tenant {number}"))
    took: list[float] = []
    for _ in range(50):
        began = time.perf_counter()
        granted = queue.next(0.0, (1,))
        assert granted is not None
        queue.remove(granted)
        queue.charge(granted.tenant, 100, 1.0)
        took.append(time.perf_counter() - began)
    assert sorted(took)[25] < 0.5e-3  # a look at each takes 3 ms
