"""What the C allocator keeps of memory that is free: given back to the system where it can be."""

import ctypes


def give_back_free_memory() -> None:
    """Let the system have the heap's free pages, of which a start leaves many; with glibc alone, elsewhere nothing.

    No cycles are collected before: that would hold up a start by more than it is worth.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
