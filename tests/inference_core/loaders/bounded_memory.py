"""Says when reading a small file takes absurdly much memory."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_BYTES = 32 << 20


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Fails if the block's allocations (Python's and NumPy's) at any time pass `LIMIT_BYTES`."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LIMIT_BYTES, f"{peak} bytes at the peak"
