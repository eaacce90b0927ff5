"""What queueing theory says of one pool: waits, the knee, marks and slots. Pure, standard library.

Times are in seconds, rates in requests per second; `slots` is c, `mean_service_s` is S, `scv` the
squared coefficient of variation of the service time (variance / mean^2: 0 constant, 1 exponential).
The offered load is a = arrivals_per_s * S (mean busy slots), the utilisation a / c. Arrivals are
Poisson. Nothing here measures or decides: who calls brings the numbers.
"""

import math

from extproc.admission.gamma import gamma_cdf, gamma_quantile

MOST_SLOTS = 100_000
MOST_WAITING = 10_000
"""No mark above this is ever recommended; a queue that long bounds nothing."""
_LOW_SHARE = 0.5


def erlang_b(slots: int, offered: float) -> float:
    """Share of Poisson arrivals that find all `slots` busy where nobody waits (M/G/c/c).

    By the recursion B(k) = a B(k-1) / (k + a B(k-1)) (Erlang 1917; in this form e.g. Cooper,
    Introduction to Queueing Theory, 1981), which has no factorials and cannot overflow.
    """
    _check_slots(slots)
    _check("offered", offered, least=0.0)
    blocked = 1.0
    for k in range(1, slots + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked


def erlang_c(slots: int, offered: float) -> float:
    """Share of arrivals that must wait where all may (M/M/c): C = B / (1 - rho (1 - B)).

    1.0 at and above full load, where the queue grows without end.
    """
    blocked = erlang_b(slots, offered)
    if offered >= slots:
        return 1.0
    return blocked / (1.0 - offered / slots * (1.0 - blocked))


def mean_wait_s(
    slots: int,
    arrivals_per_s: float,
    mean_service_s: float,
    scv: float = 1.0,
    arrivals_scv: float = 1.0,
) -> float:
    """Mean wait of all arrivals, by Allen and Cunneen: Wq = (Ca^2 + Cs^2) / 2 * C S / (c - a).

    Exact for M/M/c, and for M/G/1; else an approximation (Allen, Probability, Statistics and
    Queueing Theory, 1990). Infinite at and above full load.
    """
    offered = _offered(slots, arrivals_per_s, mean_service_s, scv)
    _check("arrivals_scv", arrivals_scv, least=0.0)
    if offered >= slots:
        return math.inf
    spread = (arrivals_scv + scv) / 2.0
    return spread * erlang_c(slots, offered) * mean_service_s / (slots - offered)


def wait_beyond(
    slots: int, arrivals_per_s: float, mean_service_s: float, wait_s: float, scv: float = 1.0
) -> float:
    """P(W > wait_s) where all may wait.

    M/M/c exactly: C exp(-(c - a) wait_s / S). For other service times the wait of those who wait is
    taken as exponential too, with Allen and Cunneen's mean (the form that heavy traffic gives).
    """
    offered = _offered(slots, arrivals_per_s, mean_service_s, scv)
    _check("wait_s", wait_s, least=0.0)
    if offered >= slots:
        return 1.0
    waits = (1.0 + scv) / 2.0 * mean_service_s / (slots - offered)
    return erlang_c(slots, offered) * math.exp(-wait_s / waits) if waits else 0.0


def wait_percentile_s(
    slots: int,
    arrivals_per_s: float,
    mean_service_s: float,
    percentile: float,
    scv: float = 1.0,
) -> float:
    """The wait that `wait_beyond` says only 1 - `percentile` of all arrivals exceed."""
    offered = _offered(slots, arrivals_per_s, mean_service_s, scv)
    _check_percentile(percentile)
    if offered >= slots:
        return math.inf
    waiting = erlang_c(slots, offered)
    if waiting <= 1.0 - percentile:
        return 0.0
    waits = (1.0 + scv) / 2.0 * mean_service_s / (slots - offered)
    return waits * math.log(waiting / (1.0 - percentile))


def joined_within(
    behind: int, slots: int, mean_service_s: float, wait_s: float, scv: float = 1.0
) -> float:
    """P(wait <= wait_s) of a request that finds all slots busy and joins behind `behind` others.

    It waits for behind + 1 departures from c busy slots. Exponential service: exactly the Erlang
    distribution, Gamma(behind + 1) at rate c / S. Else a gamma with the mean (behind + 1) S / c and
    the variance (behind + 1) (S / c)^2 I, see `_dispersion`.
    """
    _check_slots(slots)
    _check_service(mean_service_s, scv)
    _check("behind", behind, least=0)
    _check("wait_s", wait_s, least=0.0)
    departures = behind + 1
    dispersion = _dispersion(departures / slots, scv)
    return gamma_cdf(departures / dispersion, wait_s / mean_service_s * slots / dispersion)


def joined_percentile_s(
    behind: int, slots: int, mean_service_s: float, percentile: float, scv: float = 1.0
) -> float:
    """The percentile of the distribution in `joined_within`."""
    _check_slots(slots)
    _check_service(mean_service_s, scv)
    _check("behind", behind, least=0)
    _check_percentile(percentile)
    departures = behind + 1
    dispersion = _dispersion(departures / slots, scv)
    quantile = gamma_quantile(departures / dispersion, percentile)
    return quantile * dispersion * (mean_service_s / slots)


def high_water(
    slots: int, mean_service_s: float, scv: float, wait_limit_s: float, percentile: float
) -> int:
    """The high mark: how many may wait so that the last of them still fits.

    A gate with this mark lets a request join behind high_water - 1 others at most; the given
    percentile of that wait is within `wait_limit_s`, behind one more it is not. 0: not even the
    first in the queue can be promised it, so nobody waits (a loss system).
    """
    _check_percentile(percentile)
    _check("wait_limit_s", wait_limit_s, least=0.0)

    def fits(mark: int) -> bool:
        return joined_within(mark - 1, slots, mean_service_s, wait_limit_s, scv) >= percentile

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if low >= MOST_WAITING:
            return MOST_WAITING
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def low_water(high: int) -> int:
    """The low mark: half of the high one, as the config's default is."""
    return int(high * _LOW_SHARE)


def knee_per_s(
    slots: int, mean_service_s: float, scv: float, wait_limit_s: float, percentile: float
) -> float:
    """The knee: the arrival rate at which the percentile of the wait (all may wait) reaches the
    limit. Below it the SLO holds without shedding; above it the wait grows steeply."""
    _check_slots(slots)
    _check_service(mean_service_s, scv)
    _check_percentile(percentile)
    _check("wait_limit_s", wait_limit_s, least=0.0)
    low, high = 0.0, float(slots)  # in busy slots
    for _ in range(50):
        offered = (low + high) / 2
        late = wait_beyond(slots, offered / mean_service_s, mean_service_s, wait_limit_s, scv)
        low, high = (low, offered) if late > 1.0 - percentile else (offered, high)
    return low / mean_service_s


def slots_needed(
    arrivals_per_s: float, mean_service_s: float, scv: float, wait_limit_s: float, percentile: float
) -> int:
    """The fewest slots with which the percentile of the wait is within the limit, nobody shed.

    ValueError where more than MOST_SLOTS would be needed.
    """
    _check_percentile(percentile)
    offered = _offered(1, arrivals_per_s, mean_service_s, scv)

    def holds(slots: int) -> bool:
        late = wait_beyond(slots, arrivals_per_s, mean_service_s, wait_limit_s, scv)
        return late <= 1.0 - percentile

    if offered >= MOST_SLOTS or not holds(MOST_SLOTS):
        raise ValueError(
            f"{arrivals_per_s:g} requests/s of {mean_service_s:g} s each need more than "
            f"{MOST_SLOTS:,} slots; is a unit wrong?"
        )
    low, high = int(offered), MOST_SLOTS  # `low` slots never hold: they are full
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _dispersion(services: float, scv: float) -> float:
    """Variance over mean of the departures of c busy slots in `services` mean service times:
    I(x) = 1 + (scv - 1) (1 - (1 - exp(-g x)) / (g x)).

    The slots are taken as c independent stationary renewal processes. For a short while they look
    like one Poisson process whatever the service (few slots end twice: I = 1), in the long run
    their own regularity shows (I = scv). The way between is exact for two-stage Erlang service
    (g = 4) and for hyperexponential service with balanced means (g = 2 / (1 + scv)), by the renewal
    function in Cox, Renewal Theory, 1962, 4.5. For scv < 1, g = 2 / (1 - scv) goes through the
    first and has the right slope at 0 for every service time that is never close to 0.

    Breaks where slots are not independent or not in the middle of their work (a burst into an idle
    pool, all of one length, ends together), and where one answer's length tells of the next.
    """
    passed = services * (2.0 / (1.0 - scv) if scv < 1.0 else 2.0 / (1.0 + scv))
    # The first term alone where the difference would be all rounding.
    far = passed / 2.0 if passed < 1e-6 else 1.0 + math.expm1(-passed) / passed
    return 1.0 + (scv - 1.0) * far


def _offered(slots: int, arrivals_per_s: float, mean_service_s: float, scv: float) -> float:
    _check_slots(slots)
    _check_service(mean_service_s, scv)
    _check("arrivals_per_s", arrivals_per_s, least=0.0)
    offered = arrivals_per_s * mean_service_s
    _check("arrivals_per_s * mean_service_s", offered, least=0.0)
    return offered


def _check_slots(slots: int) -> None:
    if not 1 <= slots <= MOST_SLOTS:
        raise ValueError(f"slots must be between 1 and {MOST_SLOTS:,}, got {slots:,}")


def _check_service(mean_service_s: float, scv: float) -> None:
    _check("scv", scv, least=0.0)
    if not 0 < mean_service_s < math.inf:
        raise ValueError(f"mean_service_s must be above 0 and finite, got {mean_service_s}")


def _check_percentile(percentile: float) -> None:
    if not 0.5 <= percentile < 1:
        raise ValueError(f"percentile must be at least 0.5 and below 1, got {percentile}")


def _check(name: str, value: float, *, least: float) -> None:
    if not least <= value < math.inf:
        raise ValueError(f"{name} must be at least {least:g} and finite, got {value}")
