"""What a measurement was made on: processor, memory, versions, the kernels in use."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.requirements.evidence_runs import git
from inference_core.native import cpu

_FLAGS = ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8")


def describe_machine() -> dict[str, Any]:
    """Plain values for a measurement's head. What the system does not tell is left out."""
    described: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "kernels": cpu.extension().instruction_set() if cpu.AVAILABLE else "torch",
        "versions": _versions("aio-gateway", "torch", "numpy"),
    }
    return described | _processor() | _memory() | _commit()


def _commit() -> dict[str, str]:
    """The commit of the checkout that holds this file, with a plus where tracked files differ from it."""
    described = git(Path(__file__).parent, "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+")
    return {} if described is None else {"commit": described}


def _processor() -> dict[str, Any]:
    """Name, flags that the kernels could use, and the clock now, of the first processor in /proc/cpuinfo."""
    text = _read("/proc/cpuinfo").split("\n\n")[0]
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    described: dict[str, Any] = {}
    if "model name" in fields:
        described["processor"] = fields["model name"]
    if "flags" in fields:
        described["flags"] = [flag for flag in _FLAGS if flag in fields["flags"].split()]
    if "cache size" in fields:
        described["cache"] = fields["cache size"]
    return described


def _memory() -> dict[str, Any]:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return {"memory_gib": round(int(line.split()[1]) / 2**20, 1)}
    return {}


def _versions(*packages: str) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
