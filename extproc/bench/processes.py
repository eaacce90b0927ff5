"""What processes cost: their CPU time and memory, from /proc (Linux). Reads, never changes."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process, its threads and its children, since it began.
    Of children that have ended too, if they were waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S  # utime stime cutime cstime
    return own + sum(cpu_s(child) for child in _children(pid))


def resident_mib(pid: int) -> float:
    """Memory (VmRSS) of one process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has ended")


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
