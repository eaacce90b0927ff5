"""What the samples of one UTC day have cost, and may still. Pure."""

_DAY_S = 86_400


class DaySpend:
    """Reserved before anything is asked, settled when it is known: so the limit holds also while
    several samples are under way. A sample that ends on another day than it began counts there."""

    def __init__(self) -> None:
        self._day = -1
        self._spent_usd = 0.0
        self._reserved_usd = 0.0

    def reserve(self, usd: float, limit_usd: float, now_s: float) -> bool:
        """Whether so much may still be spent today; if so it is put aside. `now_s`: Unix time."""
        if self.today_usd(now_s) + self._reserved_usd + usd > limit_usd:
            return False
        self._reserved_usd += usd
        return True

    def settle(self, reserved_usd: float, usd: float, now_s: float) -> None:
        """Of what was reserved, so much was spent."""
        self._reserved_usd = max(self._reserved_usd - reserved_usd, 0.0)
        self._spent_usd = self.today_usd(now_s) + usd

    def today_usd(self, now_s: float) -> float:
        if (day := int(now_s // _DAY_S)) != self._day:
            self._day, self._spent_usd = day, 0.0
        return self._spent_usd
