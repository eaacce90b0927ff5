"""Programs of others that some tests need, and what to say where there is none."""

import shutil
import sys
from pathlib import Path

NO_PROMETHEUS = "no prometheus and promtool: apt-get install --no-install-recommends prometheus"


def tool(name: str) -> str:
    """A program beside this Python or on PATH; empty: there is none."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or ""
