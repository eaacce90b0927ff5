"""The model servers, seen from the side: are they up, how busy, with which models, and please stop.

Requests never pass through here. Every call has a time limit; a server that does not answer is down
(health), keeps what it last said (load), or is left to Envoy's own cut (stop).
"""

from extproc.backends.load import Load, Servers
from extproc.backends.pools import Backends

__all__ = ["Backends", "Load", "Servers"]
