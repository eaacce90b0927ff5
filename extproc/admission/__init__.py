"""Who may enter a pool, and when. Pure: no gRPC, no HTTP, no clock of its own.

`gate` is the rule (two marks), `limiter` enforces it (slots, queue, leases), `retry_after` is what
a shed client is told. `queueing` says where marks belong, `gated` what they do in the long run;
`gamma` is the mathematics under both.
"""

from extproc.admission.gate import Gate
from extproc.admission.limiter import Lease, Limiter, Shed
from extproc.admission.retry_after import retry_after_s

__all__ = ["Gate", "Lease", "Limiter", "Shed", "retry_after_s"]
