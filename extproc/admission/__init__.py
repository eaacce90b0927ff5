"""Who may enter a pool, and when. Pure: no gRPC, no HTTP, no clock of its own.

`limiter` is the door: slots, leases, the queue before them. It asks `gate` (two marks) whether one
may wait, `claims` whether one may all the same, and `fair_queue` who is next. `lease` is what a
request has of it, and `batch` the lane of that class. `marks` says where the marks belong, from the
SLO and `service_times`; `retry_after` what a shed client is told. `queueing` has the theory,
`gated` what marks do in the long run; `gamma` is the mathematics under both.
"""

from extproc.admission.batch import BATCH, waiting_marks
from extproc.admission.gate import Gate
from extproc.admission.lease import CLASSES, Ask, Lease
from extproc.admission.limiter import Audit, Limiter, Shed
from extproc.admission.marks import MOST_WAITING, Marks, Slo, marks, needed_s
from extproc.admission.service_times import Running

__all__ = [
    "BATCH",
    "CLASSES",
    "MOST_WAITING",
    "Ask",
    "Audit",
    "Gate",
    "Lease",
    "Limiter",
    "Marks",
    "Running",
    "Shed",
    "Slo",
    "marks",
    "needed_s",
    "waiting_marks",
]
