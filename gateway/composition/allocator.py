"""What the C allocator keeps of memory that is free: little of it, and given back to the system where it can be."""

import ctypes

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Have all threads that begin from now on take from one heap; with glibc alone, elsewhere nothing.

    Otherwise up to eight per processor core have heaps of their own, each as large as the largest burst that ever met
    its thread: memory that is nearly all free and that no other thread can have. Threads that wait for Python's lock
    most of the time hardly ever wait for the heap's.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_ARENA_MAX, 1)


def give_back_free_memory() -> None:
    """Let the system have the heap's free pages, of which a start leaves many; with glibc alone, elsewhere nothing.

    No cycles are collected before: that would hold up a start by more than it is worth.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
