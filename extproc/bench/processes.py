"""What processes cost: their CPU time and memory, as Linux counts them. Reads, never changes."""

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SCHED_CLOCK = 2


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process, all its threads and its children, since it began.

    What utime + stime in /proc/PID/stat count, but in nanoseconds instead of ticks of 10 ms: by the
    clock of clock_getcpuclockid(3). Of children that have ended and were waited for, by stat.
    """
    own = time.clock_gettime((~pid << 3) | _SCHED_CLOCK)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = sum(int(ticks) for ticks in fields[13:15]) / _TICKS_PER_S  # cutime cstime
    return own + ended + sum(cpu_s(child) for child in _children(pid))


def resident_mib(pid: int) -> float:
    """Memory (VmRSS) of one process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has ended")


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def machine_cpu_s() -> float:
    """CPU seconds of all processes and all cores since the machine began, with what a hypervisor
    took for others (steal)."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    # After the name: user nice system idle iowait irq softirq steal; guests are in user.
    spent = [int(ticks) for at, ticks in enumerate(fields[1:9]) if at not in (3, 4)]
    return sum(spent) / _TICKS_PER_S
