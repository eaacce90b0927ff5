"""The gamma distribution, by the standard library alone.

Pure mathematics. Knows nothing of queues, and never returns anything but a number in range.
"""

import math

_PRECISION = 1e-13


def gamma_cdf(shape: float, x: float) -> float:
    """P(X <= x) of a gamma variable with `shape` and scale 1; with a whole shape n the time until
    the n-th event of a Poisson process of rate 1.

    Series below `shape + 1`, continued fraction (Lentz) above: NIST DLMF 8.11.4 and 8.9.2.
    """
    if not 0 < shape < math.inf or math.isnan(x):
        raise ValueError(f"a gamma variable needs a shape above 0 and a number, got {shape}, {x}")
    if x <= 0:
        return 0.0
    if x == math.inf:
        return 1.0
    log_factor = shape * math.log(x) - x - math.lgamma(shape)
    if log_factor < -745:  # exp of it is 0: all of the mass lies on one side
        return 0.0 if x < shape else 1.0
    factor = math.exp(log_factor)
    if x < shape + 1:
        return min(factor * _series(shape, x), 1.0)
    return max(1.0 - factor * _fraction(shape, x), 0.0)


def gamma_quantile(shape: float, probability: float) -> float:
    """The x at which `gamma_cdf` reaches `probability` (above 0, below 1), by bisection."""
    if not 0 < probability < 1:
        raise ValueError(f"a quantile needs a probability between 0 and 1, got {probability}")
    low, high = 0.0, shape + 1.0
    while gamma_cdf(shape, high) < probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if gamma_cdf(shape, middle) < probability:
            low = middle
        else:
            high = middle
    return high


def _series(shape: float, x: float) -> float:
    term = total = 1.0 / shape
    divisor = shape
    while term > total * _PRECISION:
        divisor += 1.0
        term *= x / divisor
        total += term
    return total


def _fraction(shape: float, x: float) -> float:
    tiny = 1e-300
    b = x + 1.0 - shape
    c, d = 1.0 / tiny, 1.0 / (b or tiny)
    total = d
    step = 0.0
    n = 0
    while abs(step - 1.0) > _PRECISION:
        n += 1
        a = n * (shape - n)
        b += 2.0
        d = 1.0 / ((a * d + b) or tiny)
        c = (b + a / c) or tiny
        step = c * d
        total *= step
    return total
