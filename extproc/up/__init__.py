"""`forebay up`: Envoy, the processor and the pools on this machine, as one thing.

For trying Forebay and for its tests; production starts the parts by its own means. `render` makes
the config that runs, `stack` the processes.
"""

from extproc.up.render import (
    Interrupted,
    Options,
    Rendered,
    UpError,
    find_envoy,
    free_port,
    reference_config,
    render,
)
from extproc.up.stack import Child, Stack

__all__ = [
    "Child",
    "Interrupted",
    "Options",
    "Rendered",
    "Stack",
    "UpError",
    "find_envoy",
    "free_port",
    "reference_config",
    "render",
]
