"""Limits the free memory that the C allocator keeps, and returns it to the system."""

import ctypes

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Make threads that start from now on share one heap; with glibc only, elsewhere nothing.

    Otherwise up to eight heaps per processor core exist, each as large as its threads' largest burst: mostly free
    memory that no other thread can use. Threads that mostly wait for Python's lock rarely wait for the heap's.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_ARENA_MAX, 1)


def give_back_free_memory() -> None:
    """Return the heap's free pages, of which a start leaves many, to the system; with glibc only, elsewhere nothing.

    Garbage is not collected first: that would delay a start by more than it is worth.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
