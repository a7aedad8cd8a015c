"""Large pages for memory that a step reads from end to end: with small ones, address translation costs time."""

import mmap
from contextlib import suppress


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """Have what is touched from here on come in huge pages (2 MiB) where the system has them; else nothing changes."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
