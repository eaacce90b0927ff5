"""A random sample of requests, answered by both models in the background and judged blind: what
difficulty is learned from. Off unless the policy has `routing.learning`.

Nothing here may delay a client's request, and no prompt or answer is stored, logged or kept longer
than its sample takes. `shadow` is the life of a sample, top to bottom; the rest are its parts.
"""

from extproc.shadow.sample import Sample
from extproc.shadow.shadow import Shadow
from extproc.shadow.spend import DaySpend

__all__ = ["DaySpend", "Sample", "Shadow"]
