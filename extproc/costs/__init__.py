"""What answers cost, and what each lever saved: arithmetic on finished exchanges and their sums.

Pure but for `cli` and `views`, which show a running gateway's report. Must never be asked whether a
request may go on: it hears of it when all is over.
"""

from extproc.costs.ledger import OTHER, Ledger
from extproc.costs.report import Budgeted, Report
from extproc.costs.savings import cost_usd

__all__ = ["OTHER", "Budgeted", "Ledger", "Report", "cost_usd"]
