"""How to install what is optional, into the very Python that runs this. Imports none of it."""

import shlex
import sys


def install(extra: str) -> str:
    """A command line for an extra of pyproject.toml."""
    return f"{shlex.quote(sys.executable)} -m pip install 'forebay[{extra}]'"
