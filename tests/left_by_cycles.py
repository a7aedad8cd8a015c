"""What is left for a collection of garbage, because it is in a cycle or is held by one."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def left_by_cycles(*packages: str, least: int) -> Iterator[Callable[[], dict[str, int]]]:
    """A function that counts what the block has left so far, by type, of the types of `packages` that were left `least`
    times: what is left once is no matter of each answer."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def found() -> dict[str, int]:
        gc.collect()
        kinds = (type(one) for one in gc.garbage)
        counts = Counter(kind.__qualname__ for kind in kinds if kind.__module__.split(".")[0] in packages)
        return {name: count for name, count in counts.items() if count >= least}

    try:
        yield found
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
