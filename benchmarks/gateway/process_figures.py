"""Memory, threads and open files of a server: of its process, those of its cores, and those of grammars
below them."""

from contextlib import suppress
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Resident set sizes of process `pid` and its children, mapped weights included (`VmRSS`); what they share counts
    in each."""
    return sum(_kilobytes(f"/proc/{process}/status", "VmRSS:") for process in _processes(pid))


def proportional_bytes(pid: int) -> int:
    """The same, but what processes share is divided among them (`Pss`)."""
    return sum(_kilobytes(f"/proc/{process}/smaps_rollup", "Pss:") for process in _processes(pid))


def open_files(pid: int) -> int:
    """Open descriptors of process `pid` and its children: files, sockets, pipes."""
    return sum(len(list(Path(f"/proc/{process}/fd").iterdir())) for process in _processes(pid))


def threads(pid: int) -> int:
    """Threads of process `pid` and its children."""
    return sum(len(list(Path(f"/proc/{process}/task").iterdir())) for process in _processes(pid))


def _processes(pid: int) -> list[int]:
    pids = [pid]
    for process in pids:
        for task in Path(f"/proc/{process}/task").iterdir():
            # A thread may end meanwhile; its children are then the process's.
            with suppress(FileNotFoundError):
                pids += [int(child) for child in (task / "children").read_text().split()]
    return pids


def _kilobytes(path: str, name: str) -> int:
    """Bytes of a line in kilobytes."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{path} has no {name}: the process is gone")
