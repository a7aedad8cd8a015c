"""How much of a device's memory is left for keys and values, measured at load, with the arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.memory_plan import format_bytes


@dataclass(slots=True, frozen=True)
class MemoryProfile:
    """Bytes of one device: `total`; `others`, which do not belong to this process; `weights` and buffers that stay;
    `activations`, the most that the largest step takes besides; `graphs`, what captured steps keep.
    """

    total: int
    others: int
    weights: int
    activations: int
    graphs: int = 0

    def arena_bytes(self, utilization: float, slab_bytes: int) -> int:
        """What the KV arena may have if `utilization` of the device may be used in all: whole slabs (SPEC TI-06).

        Raises MemoryPlanError, with the arithmetic, if that is not one slab.
        """
        left = int(self.total * utilization) - self.others - self.weights - self.activations - self.graphs
        slabs = left // slab_bytes
        if slabs < 1:
            lines = "\n  ".join(self.lines(utilization, slab_bytes))
            raise MemoryPlanError(f"nothing is left for keys and values:\n  {lines}")
        return slabs * slab_bytes

    def lines(self, utilization: float, slab_bytes: int) -> list[str]:
        """The arithmetic, a line per term."""
        usable = int(self.total * utilization)
        taken = (
            ("other processes", self.others),
            ("weights and buffers", self.weights),
            ("activations of the largest step", self.activations),
            ("captured steps", self.graphs),
        )
        left = usable - sum(size for _, size in taken)
        return [
            f"usable: {format_bytes(self.total)} x {utilization:g} = {format_bytes(usable)}",
            *(f"- {name}: {format_bytes(size)}" for name, size in taken),
            f"= {format_bytes(left)}, {max(left, 0) // slab_bytes} slabs of {format_bytes(slab_bytes)}",
        ]


def profile_cuda(device: torch.device, largest_step: Callable[[], object]) -> MemoryProfile:
    """Run `largest_step` once, with everything loaded that stays, and see what it takes at its peak."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    largest_step()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    # What is neither free nor this process's tensors: other processes, and the driver's own context.
    others = total - free - torch.cuda.memory_reserved(device)
    return MemoryProfile(total=total, others=others, weights=held, activations=peak - held)
