"""Memory and CPU time of a server: of its process, those of its cores, and those of grammars below them."""

import os
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Resident set sizes of process `pid` and its children, mapped weights included (`VmRSS`); what they share counts
    in each."""
    return sum(map(_resident_bytes, _processes(pid)))


def cpu_seconds(pid: int) -> float:
    """Total CPU time of all threads of process `pid` and its children, user and system, in kernel ticks."""
    return sum(map(_cpu_seconds, _processes(pid)))


def _processes(pid: int) -> list[int]:
    found = [pid]
    for process in found:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _resident_bytes(process: int) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {process} is gone")


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
