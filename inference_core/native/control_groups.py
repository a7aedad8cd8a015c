"""The processors and the memory that this process may use: the machine's, and the limits of its control groups
(versions 1 and 2), which containers have."""

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_KIB = 1024


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the whole processors that this process may use, at least 1: of a quota of 1.5 one, because a thread too
    many waits for the next period, and all others for it. `root`: of `/proc` and `/sys`."""
    quotas = [quota for folder in _folders(root, "cpu") if (quota := _quota(folder)) is not None]
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be allocated without swapping: the machine's `MemAvailable`, or the room below the
    lowest limit, where the cache of files does not count; None if neither is known."""
    rooms = [room for folder in _folders(root, "memory") if (room := _room(folder)) is not None]
    machine = [line for line in _lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    return min([*rooms, *(int(line.split()[1]) * _KIB for line in machine)], default=None)


def bound_libraries(environment: MutableMapping[str, str]) -> None:
    """Bound the threads of mathematical libraries, which count the machine's processors, where a quota leaves fewer.
    Before they are imported; processes that this one starts inherit it."""
    cpus = usable_cpus()
    if cpus < len(os.sched_getaffinity(0)):
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment.setdefault(name, str(cpus))


class _Mount(NamedTuple):
    """A hierarchy of control groups: what of it is mounted, and where."""

    shown: PurePosixPath
    at: Path
    version: int


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Return the folders of this process's group with `controller`, and of the groups above it, whose limits hold too.
    A container sees some of them alone."""
    mounts = {name: mount for name, mount in _mounts(root) if name in (controller, "")}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        mount = mounts.get(controller) if controller in names else mounts.get("") if not controllers else None
        if mount is None:
            continue
        group = PurePosixPath(path)
        # The path of another namespace names nothing here.
        is_shown = group.is_relative_to(mount.shown) and ".." not in group.parts
        inner = group.relative_to(mount.shown) if is_shown else PurePosixPath()
        folder = mount.at / inner
        yield from (level for level in (folder, *folder.parents) if level.is_relative_to(mount.at) and level.is_dir())


def _mounts(root: Path) -> Iterator[tuple[str, _Mount]]:
    """Return the hierarchies by controller; that of version 2 is ""."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        mount = _Mount(PurePosixPath(fields[3]), root / fields[4].lstrip("/"), 2 if kind == "cgroup2" else 1)
        yield from ((name, mount) for name in ([""] if kind == "cgroup2" else options.split(",")))


def _quota(folder: Path) -> float | None:
    """Return the processors of a group; None for no quota."""
    quota, period = [*"".join(_lines(folder / "cpu.max")).split(), "", ""][:2]
    if not quota:
        quota = "".join(_lines(folder / "cpu.cfs_quota_us"))
        period = "".join(_lines(folder / "cpu.cfs_period_us"))
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return int(quota) / int(period)


def _room(folder: Path) -> int | None:
    """Return the bytes that a group may still use; None for no limit."""
    for limit, usage, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        most, used = ("".join(_lines(folder / name)) for name in (limit, usage))
        if most.isdecimal() and used.isdecimal():
            counts = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
            files = sum(int(counts.get(f"{prefix}{kind}_file", "0")) for kind in ("active", "inactive"))
            return max(0, int(most) - max(0, int(used) - files))
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
