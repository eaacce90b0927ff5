"""Numbers as people read them."""

from math import isinf


def time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def share(part: float) -> str:
    return f"{part * 100:.3g}%"


def percentile(level: float) -> str:
    """0.99: `p99`."""
    return f"p{level * 100:g}"


def tokens(count: float) -> str:
    if isinf(count):
        return "any number of tokens"
    return f"{count:,.0f} tokens"
