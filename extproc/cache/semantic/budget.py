"""The false-hit budget: from the hits that were checked it decides where the semantic cache is on.

A sample of the hits of each scope is answered by the model too and compared; this is told whether
they agreed. Pure: the time and the draws are arguments. In doubt a scope is off.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Literal

State = Literal["on", "off", "probing"]

# The test, see `_Test`: these were chosen with the exact probabilities in its docstring in view.
_FINE = 0.5
_TOO_MANY = 3.0
_FLOOR = -3.0
_LIMIT = 5.0
_LIMIT_UP_TO = 0.01


class _Test:
    """Page's cumulative sum of log likelihood ratios (E. S. Page, Continuous Inspection Schemes,
    Biometrika 41, 1954; the steps are those of A. Wald's sequential test, Sequential Analysis,
    1947) for a rate of false hits of 3 budgets against half a budget. The sum has a floor of -3, so
    that a long good time does not buy a bad one, and the scope is over budget at 5.

    Exact for a budget of 0.01, by the chain of its sums: a rate of half the budget ends over budget
    within 2,000 checks with probability 0.008. Within 200 checks a rate of 10% is found with
    0.99997 (0.9998 after the best history), one of 5% with 0.95 (0.88); within 300 with 0.99
    (0.98). More is not to be had: of all tests of 200 checks that take half the budget for too much
    with at most 1%, the best finds 5% with 0.98 (Neyman and Pearson).

    Larger budgets have a higher limit, for their sums go up more often by chance; below 0.01 it
    takes more checks to see so small a rate, about 3 / budget."""

    def __init__(self, budget: float) -> None:
        fine, too_many = _FINE * budget, _TOO_MANY * budget
        self.up = math.log(too_many / fine)
        self.down = math.log((1 - too_many) / (1 - fine))
        self.limit = _LIMIT + max(0.0, math.log(budget / _LIMIT_UP_TO))


class _Scope:
    """`since` is when it went off, in seconds."""

    __slots__ = ("checked", "disagreed", "since", "state", "sum")

    def __init__(self) -> None:
        self.state: State = "on"
        self.restart()

    def restart(self) -> None:
        self.checked = self.disagreed = 0
        self.sum = self.since = 0.0


class FalseHitBudget:
    """All state: `_scopes`, of those that had a hit, the least recently told first. One that is not
    off may be forgotten to make room: it begins anew, with its first hits checked. One that is off
    never is; if all are, a scope that is not known is off."""

    def __init__(
        self,
        budget: float,
        *,
        share: float = 0.05,
        first: int = 20,
        cool_down_s: float | None = None,
        most_scopes: int = 10_000,
    ) -> None:
        """
        budget       The rate of false hits that is still right, above 0 and at most 0.1.
        share        Of the hits, how many are checked: 0 to 1.
        first        So many hits of a scope are checked whatever the share, and while probing.
        cool_down_s  So long after it went off a scope is probed: each hit is checked, and the
                     client gets the model's answer. None: it stays off until `reset`.
        """
        if not 0 < budget <= 0.1:
            raise ValueError(f"a false-hit budget is above 0 and at most 0.1, not {budget:g}")
        self._test = _Test(budget)
        self._share = share
        self._first = first
        self._cool_down_s = cool_down_s
        self._most_scopes = most_scopes
        self._scopes: OrderedDict[Hashable, _Scope] = OrderedDict()
        self._off = 0
        self.budget = budget
        self.checked = 0
        """Hits of all scopes, since the start."""
        self.disagreed = 0
        """Of these, those with which the model did not agree."""

    def state(self, scope: Hashable, now: float) -> State:
        """`on`: hits may be served. `off`: the semantic cache is not asked. `probing`: it is asked,
        each hit is checked, and none is served."""
        known = self._scopes.get(scope)
        if known is None:
            return "off" if self._off >= self._most_scopes else "on"
        if (
            known.state == "off"
            and self._cool_down_s is not None
            and now - known.since >= self._cool_down_s
        ):
            known.restart()
            known.state = "probing"
            self._off -= 1
        return known.state

    def checks(self, scope: Hashable, draw: float) -> bool:
        """Whether this hit is to be answered by the model too. `draw`: uniform, from 0 to 1, and
        not by anything of the request, or the sample would not be fair."""
        known = self._scopes.get(scope)
        checked = known.checked if known else 0
        if (known and known.state == "probing") or checked < self._first:
            return True
        return draw < self._share

    def told(self, scope: Hashable, agreed: bool, now: float) -> bool:
        """Of a hit that was checked, whether the model agreed. True: with this one the scope has
        gone off."""
        known = self._known(scope)
        if known is None or known.state == "off":  # a late word of a hit before it went off
            return False
        self.checked += 1
        self.disagreed += not agreed
        known.checked += 1
        known.disagreed += not agreed
        step = self._test.down if agreed else self._test.up
        known.sum = max(known.sum + step, _FLOOR)
        if known.sum >= self._test.limit:
            known.state, known.since = "off", now
            self._off += 1
            return True
        if known.state == "probing" and known.checked >= self._first:
            known.state = "on"
        return False

    def reset(self, scope: Hashable | None = None) -> None:
        """By an operator: the scope, or all, begin anew."""
        if scope is None:
            self._scopes.clear()
            self._off = 0
        elif (known := self._scopes.pop(scope, None)) is not None:
            self._off -= known.state == "off"

    def counts(self, scope: Hashable) -> tuple[int, int]:
        """Since it began: hits checked, and those in which the model did not agree."""
        known = self._scopes.get(scope)
        return (known.checked, known.disagreed) if known else (0, 0)

    @property
    def scopes_off(self) -> int:
        return self._off

    def off(self) -> list[Hashable]:
        """The scopes that are."""
        return [scope for scope, known in self._scopes.items() if known.state == "off"]

    def __len__(self) -> int:
        return len(self._scopes)

    def _known(self, scope: Hashable) -> _Scope | None:
        """None: there is no room for it."""
        if (known := self._scopes.get(scope)) is not None:
            self._scopes.move_to_end(scope)
            return known
        if len(self._scopes) >= self._most_scopes:
            if self._off >= self._most_scopes:
                return None
            del self._scopes[next(key for key, each in self._scopes.items() if each.state != "off")]
        known = self._scopes[scope] = _Scope()
        return known
