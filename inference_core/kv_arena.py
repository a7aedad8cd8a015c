"""The memory behind the KV blocks of every model of a core: one flat run of bytes."""

import mmap

import torch


def allocate_arena(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes], taken from the system only as it is touched.

    In huge pages where the system has them: blocks are read in pieces of a few kilobytes all over the arena, and with
    small pages address translation takes longer than the reading.
    """
    memory = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
