"""The memory behind the KV blocks of every model of a core: one flat run of bytes."""

import mmap

import torch

from inference_core.errors import MemoryPlanError
from inference_core.io.huge_pages import prefer_huge_pages

# Memory that processes share gets huge pages by another switch of the system, which is mostly off.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MADV_HUGEPAGE") else {}


def allocate_arena(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes], taken from the system only as it is touched.

    In huge pages where the system has them: blocks are read in pieces of a few kilobytes all over the arena, and with
    small pages address translation takes longer than the reading. Raises MemoryPlanError if the system refuses.
    """
    try:
        memory = mmap.mmap(-1, num_bytes, **_PRIVATE)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryPlanError(
            f"the system gives no {num_bytes} bytes for the KV arena ({error}); make arena_bytes smaller"
        ) from error
    prefer_huge_pages(memory)
    return torch.frombuffer(memory, dtype=torch.uint8)
