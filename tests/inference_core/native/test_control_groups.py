"""Limits of control groups, of both versions, bound the threads and the memory of a process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from inference_core.errors import MemoryPlanError
from inference_core.loading import load_core
from inference_core.native import control_groups
from inference_core.native.control_groups import available_memory, usable_cpus

GIB = 1 << 30
HUGE = 9_223_372_036_854_771_712
"""What version 1 says where there is no limit."""


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def machine(root: Path, group: str, mounts: str, **files: str) -> Path:
    usual = {"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB"}
    return write(root, usual | {"proc/self/cgroup": group, "proc/self/mountinfo": mounts} | files)


TWO = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
ONE = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {shown} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {shown} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"
)


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 1), ("20000 100000", 1), ("6400000 100000", 8),
     ("", 8), ("x y", 8), ("100 0", 8)],
)  # fmt: skip
def test_a_quota_of_version_2_sets_the_processors(tmp_path: Path, quota: str, cpus: int) -> None:
    root = machine(tmp_path, "0::/", TWO, **{"sys/fs/cgroup/cpu.max": quota})
    assert usable_cpus(root) == cpus


def test_the_lowest_limit_of_a_group_and_of_those_above_it_holds(tmp_path: Path) -> None:
    groups = "sys/fs/cgroup/kubepods"
    root = machine(
        tmp_path, "0::/kubepods/pod1/main", TWO,
        **{
            f"{groups}/cpu.max": "400000 100000", f"{groups}/pod1/cpu.max": "300000 100000",
            f"{groups}/pod1/main/cpu.max": "max 100000",
            f"{groups}/memory.max": "max", f"{groups}/memory.current": "5",
            f"{groups}/pod1/memory.max": str(6 * GIB), f"{groups}/pod1/memory.current": str(3 * GIB),
            f"{groups}/pod1/memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\nfile 99",
            f"{groups}/pod1/main/memory.max": str(64 * GIB), f"{groups}/pod1/main/memory.current": str(GIB),
        },
    )  # fmt: skip
    assert usable_cpus(root) == 3
    assert available_memory(root) == 6 * GIB - 3 * GIB + GIB + GIB // 2


@pytest.mark.parametrize(
    ("group", "shown", "folder"),
    [
        ("/docker/abc", "/docker/abc", ""),
        ("/docker/abc", "/", "docker/abc/"),
        ("/../../docker/abc", "/", ""),
        ("/elsewhere", "/docker/abc", ""),
    ],
    ids=["container", "host", "namespace", "moved"],
)
def test_limits_of_version_1_are_found_where_they_are_mounted(
    tmp_path: Path, group: str, shown: str, folder: str
) -> None:
    lines = f"12:memory:{group}\n4:cpu,cpuacct:{group}\n1:name=systemd:/x\n0::/"
    cpu, memory = f"sys/fs/cgroup/cpu,cpuacct/{folder}", f"sys/fs/cgroup/memory/{folder}"
    root = machine(
        tmp_path, lines, ONE.format(shown=shown),
        **{
            f"{cpu}cpu.cfs_quota_us": "250000", f"{cpu}cpu.cfs_period_us": "100000",
            f"{memory}memory.limit_in_bytes": str(2 * GIB), f"{memory}memory.usage_in_bytes": str(GIB),
            f"{memory}memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 4}\ntotal_active_file {GIB // 4}",
        },
    )  # fmt: skip
    assert usable_cpus(root) == 2
    assert available_memory(root) == GIB + GIB // 2


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    lines = "12:memory:/\n4:cpu,cpuacct:/"
    files = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(HUGE), "sys/fs/cgroup/memory/memory.usage_in_bytes": "7",
    }  # fmt: skip
    root = machine(tmp_path, lines, ONE.format(shown="/"), **files)
    assert (usable_cpus(root), available_memory(root)) == (8, 32 * GIB)
    assert (usable_cpus(tmp_path / "nothing"), available_memory(tmp_path / "nothing")) == (8, None)


def test_a_group_that_is_over_its_limit_has_no_room(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "100", "sys/fs/cgroup/memory.current": "200"}
    assert available_memory(machine(tmp_path, "0::/", TWO, **files)) == 0


def test_a_core_is_planned_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "available_memory", lambda: GIB)
    assert load_core.available_memory() == GIB
    monkeypatch.setattr(control_groups, "available_memory", lambda: None)
    with pytest.raises(MemoryPlanError, match="does not say"):
        load_core.available_memory()


def test_a_quota_bounds_the_threads_of_libraries_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "usable_cpus", lambda: 3)
    environment = {"OMP_NUM_THREADS": "5"}
    control_groups.bound_libraries(environment)
    assert environment == {"OMP_NUM_THREADS": "5", "OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
    monkeypatch.setattr(control_groups, "usable_cpus", lambda: 8)
    control_groups.bound_libraries(unbound := {})
    assert unbound == {}


@pytest.fixture
def group_of_one_processor() -> Iterator[Path]:
    """A real group with a quota of 1.2 processors."""
    v1 = Path("/sys/fs/cgroup/cpu")
    above = v1 if v1.is_dir() else Path("/sys/fs/cgroup")
    folder = above / f"aio-test-{os.getpid()}"
    try:
        folder.mkdir()
        if v1.is_dir():
            (folder / "cpu.cfs_quota_us").write_text("120000")
        else:
            (folder / "cpu.max").write_text("120000 100000")
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield folder
    folder.rmdir()


def test_a_process_in_a_real_group_uses_what_it_is_given(group_of_one_processor: Path) -> None:
    code = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "os.sched_getaffinity = lambda _: range(8);"
        "from inference_core.native.control_groups import usable_cpus; print(usable_cpus())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(group_of_one_processor / "cgroup.procs")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "1\n", done.stderr
