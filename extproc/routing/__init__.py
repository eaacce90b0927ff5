"""Which pools a request may use, in which order, and why. Pure.

`difficulty` judges the prompt, `plan` makes the list of pools out of policy and judgement.
"""

from extproc.routing.narrowed import from_overflow, without
from extproc.routing.plan import Plan, Router, Unroutable

__all__ = ["Plan", "Router", "Unroutable", "from_overflow", "without"]
