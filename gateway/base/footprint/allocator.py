"""Limits the free memory that the C allocator keeps, and returns it to the system."""

import ctypes

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
# More than a read of a socket asks for (256 KiB).
_OWN_PAGES_BYTES = 512 * 1024


def share_one_heap() -> None:
    """Make threads that start from now on share one heap, and give bodies of megabytes pages of their own; with glibc
    only, elsewhere nothing.

    Otherwise up to eight heaps per processor core exist, each as large as its threads' largest burst: mostly free
    memory that no other thread can use. Threads that mostly wait for Python's lock rarely wait for the heap's. And the
    first body that is freed would raise the size from which memory has pages of its own, so that later ones leave gaps
    in the heap.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_ARENA_MAX, 1)
        option(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)


def give_back_free_memory() -> None:
    """Return the heap's free pages, of which a start leaves many, to the system; with glibc only, elsewhere nothing.

    Garbage is not collected first: that would delay a start by more than it is worth.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
