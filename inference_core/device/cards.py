"""The CUDA devices that this process can use, why there are no more, and the memory that they have left.

A failure under a core on cards is said in a sentence: the driver, a compiler, or the links between cards. At load the
memory left for keys and values is measured, and the arithmetic shown. For a core that runs the device code on the
host, a part of host memory replaces a card's.
"""

import contextlib
import resource
from collections.abc import Callable
from dataclasses import dataclass

import torch

from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.memory_plan import format_bytes

# Of CUDA's and torch's messages; NCCL and the compilers are recognised first.
_DRIVER = ("cuda", "nvidia", "cudnn", "cublas", "driver", "no kernel image")
_COMPILERS = ("c compiler", "ptxas", "python.h", "gcc", "nvcc")


def failure_cause(error: BaseException) -> str | None:
    """Return what failed and what to look at, for an error of the driver, of a kernel's compilation, of a card's memory
    or of NCCL; None for any other. The first line of the error's own text is part of it."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    text = str(error).lower()
    if type(error).__module__.startswith("triton") or any(word in text for word in _COMPILERS):
        return (
            f"a kernel could not be compiled ({said}); Triton needs a C compiler and Python's headers, and its cache "
            "folder (TRITON_CACHE_DIR) must be writable"
        )
    if "out of memory" in text:
        return f"a card ran out of memory ({said}); plan for fewer or smaller models, more cards, or larger ones"
    if "nccl" in text:
        return f"the cards could not be joined by NCCL ({said}); NCCL_DEBUG=INFO shows why"
    if any(word in text for word in _DRIVER):
        return f"the driver or a card failed ({said}); nvidia-smi shows their state, and {_torch_needs()}"
    return None


def _torch_needs() -> str:
    built = torch.version.cuda
    return f"torch {torch.__version__} is built " + (f"for CUDA {built}" if built else "without CUDA")


def visible_cards() -> int:
    """Devices that torch can use (those of `CUDA_VISIBLE_DEVICES`); 0 without a driver or with a CPU build of torch."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_no_more_cards() -> str:
    """Return why torch sees no more cards than it does; "" if nothing is known."""
    if torch.version.hip is not None:
        return "torch is a build for AMD cards, which are not supported in process"
    if torch.version.cuda is None:
        return "torch is a build without CUDA"
    try:
        torch.cuda.init()
    except Exception as error:
        return f"CUDA does not start: {failure_cause(error) or error}"
    return ""


@dataclass(slots=True, frozen=True)
class MemoryProfile:
    """Bytes of one device."""

    total: int
    """The whole memory."""
    others: int
    """Memory of other processes."""
    weights: int
    """Weights with persistent buffers."""
    activations: int
    """Peak of the largest step on top of these."""
    graphs: int = 0
    """Memory held by captured steps."""

    def arena_bytes(self, utilization: float, slab_bytes: int) -> int:
        """The size of the KV arena, in whole slabs, if `utilization` of the device may be used (SPEC TI-06).

        Raises MemoryPlanError, with the arithmetic, if less than one slab is left.
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
    """Run `largest_step` once, with everything persistent loaded, and measure its peak memory."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    largest_step()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    # Neither free nor this process's tensors: other processes and the driver's context.
    others = total - free - torch.cuda.memory_reserved(device)
    return MemoryProfile(total=total, others=others, weights=held, activations=peak - held)


def profile_host(total: int) -> Callable[[torch.device, Callable[[], object]], MemoryProfile]:
    """The counterpart of `profile_cuda` for this process's growth from now on, in bytes; a card has `total`.

    Allocations of other threads count too, and so does the peak of loading if the system cannot reset its high-water
    mark: the result errs towards a smaller arena.
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
    """A field of `/proc/self/status` in bytes; 0 if the system has none."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:")), 0)
