"""Says in a sentence what failed under a core on cards: the driver, a compiler, or the links between cards."""

import torch

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
