"""The marks of `auto` under absurd measurements."""

import pytest

from extproc.admission import Running, Slo, marks
from extproc.admission.service_times import ServiceTimes


def measured(lasted_s: float, slots: int, count: int = 100) -> ServiceTimes:
    times = ServiceTimes()
    times.set_slots(slots)
    now = 0.0
    for _ in range(count):
        now += lasted_s / slots
        times.were_held(slots, now)
        times.ended(lasted_s)
    return times


@pytest.mark.parametrize(
    ("lasted_s", "slots", "high"),
    [(0.0, 8, 16), (0.001, 8, 16), (0.001, 64, 128), (3600.0, 64, 0), (1.5, 16, 5), (0.1, 1, 8)],
)
def test_auto_is_sensible_whatever_was_measured(lasted_s: float, slots: int, high: int) -> None:
    found = marks(
        "auto",
        "auto",
        "auto",
        slo=Slo(1.0, 0.99),
        slots=slots,
        service_s=measured(lasted_s, slots),
        first_token_s=Running(),
    )
    assert (found.high, found.low, found.hard) == (high, high // 2, high + slots)
    assert found.why


def test_a_server_that_needs_all_of_the_slo_leaves_no_time_to_wait() -> None:
    first_token_s = Running()
    for _ in range(50):
        first_token_s.add(1.2)
    found = marks(
        "auto",
        "auto",
        "auto",
        slo=Slo(1.0, 0.99),
        slots=200_000,
        service_s=measured(1.0, 200_000),
        first_token_s=first_token_s,
    )
    assert found.high == 0
