"""A process's children and theirs, whether they live, and what they have used."""

import os
from contextlib import suppress
from pathlib import Path


def lives(process_id: int) -> bool:
    """Whether there is such a process; a zombie does not live."""
    with suppress(OSError):
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def children(process_id: int) -> list[int]:
    """Its living children, started on any of its threads."""
    started: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{process_id}/task").iterdir():
            with suppress(OSError):
                started += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in started if lives(child)]


def family(process_id: int) -> list[int]:
    """The process and all its living descendants."""
    found = [process_id]
    for each in found:
        found += children(each)
    return found


def cpu_seconds(process_id: int) -> float:
    """CPU seconds used so far; 0 if it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def command(process_id: int) -> str:
    """Its command line; "" if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{process_id}/cmdline").read_text().replace("\0", " ")
    return ""
