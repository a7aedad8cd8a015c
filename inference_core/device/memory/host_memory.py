"""The memory of a device that is the host itself: a share of it stands for a card's."""

import contextlib
import resource
from collections.abc import Callable

import torch

from inference_core.device.memory.memory_profile import MemoryProfile


def profile_host(total: int) -> Callable[[torch.device, Callable[[], object]], MemoryProfile]:
    """What `profile_cuda` measures, of this process as it grows from now on, in bytes; a card has `total`.

    What other threads take meanwhile counts too, and where the system does not let its highest mark be reset, what
    loading took for a moment: the figures err towards a smaller arena.
    """
    before = _status("VmRSS")

    def profile(_: torch.device, largest_step: Callable[[], object]) -> MemoryProfile:
        held = _status("VmRSS")
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets VmHWM, see proc(5)
        largest_step()
        return MemoryProfile(
            total=total, others=0, weights=max(held - before, 0), activations=max(_peak() - max(held, before), 0)
        )

    return profile


def _peak() -> int:
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(name: str) -> int:
    """A line of `/proc/self/status` in bytes; 0 if the system has no such line."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:")), 0)
