"""Fits on one thread: threads of BLAS spin while they wait for each other, which on busy cores costs many times the
processor time of the fit itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

from threadpoolctl import ThreadpoolController

# One number for the whole process: a second block at the same time would restore what the first one has set.
_lock = Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block numpy's matrix products use one thread, in the whole process; blocks come one after another."""
    with _lock, _controller().limit(limits=1, user_api="blas"):
        yield


@cache
def _controller() -> ThreadpoolController:
    # Not at import: it looks through all loaded libraries, which takes milliseconds.
    return ThreadpoolController()
