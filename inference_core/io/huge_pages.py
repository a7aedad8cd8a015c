"""Huge pages for memory that every step reads in full: with small pages, address translation costs time."""

import mmap
from contextlib import suppress


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """Back pages touched from now on by huge pages (2 MiB) if the system supports them; else do nothing."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
