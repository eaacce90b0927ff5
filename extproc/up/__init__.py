"""`forebay up`: Envoy, the processor and the pools on this machine, as one thing.

For trying Forebay and for its tests; production starts the parts by its own means. `render` makes
the config that runs, `stack` the processes.
"""

from extproc.up.render import (
    DEMO_KEY,
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
    "DEMO_KEY",
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
