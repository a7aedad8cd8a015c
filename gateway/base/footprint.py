"""What memory a process gives back, and torch without the part that a core of the CPU does not need: 18 MiB of 220 and
0.65 s of processor time of its start (medians of four pairs).
"""

import ctypes
import gc
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Make threads that start from now on share one heap; with glibc only, elsewhere nothing.

    Otherwise up to eight heaps per processor core exist, each as large as its threads' largest burst: mostly free
    memory that no other thread can use. Threads that mostly wait for Python's lock rarely wait for the heap's.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return the heap's free pages, of which a start leaves many, to the system; with glibc only, elsewhere nothing.

    Garbage is not collected first: that would delay a start by more than it is worth.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class LastingObjects:
    """Makes the collector of garbage look no further at what lasts, from `start` on.

    A full collection holds the event loop for about a microsecond an object, and what a gateway makes once (its
    administration with the first look at it, models that load while others serve, modules) lasts. So what is left by a
    full collection, where it is more than `MANY` objects, becomes permanent. That happens `MOST_TIMES` at most: of what
    was permanent, cycles are never collected, such as those of a catalogue that a reload replaces.
    """

    MANY: Final = 10_000
    MOST_TIMES: Final = 8

    def __init__(self) -> None:
        self._left = self.MOST_TIMES

    def start(self) -> None:
        """Make what exists permanent, and let the collector run: it was off while that was made."""
        gc.freeze()
        # An answered request leaves nothing to collect: it is looked for after so many objects, not after 700.
        gc.set_threshold(4_000)
        gc.callbacks.append(self._freeze)
        gc.enable()

    def look(self) -> None:
        """Collect now, while no request runs, if there is much to make permanent."""
        if self._left and len(gc.get_objects()) > self.MANY:
            gc.collect()

    def _freeze(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2 and len(gc.get_objects(2)) > self.MANY:
            gc.freeze()
            self._left -= 1
            if not self._left:
                gc.callbacks.remove(self._freeze)


# Python kernels of torch's meta device, with the references and decompositions that they import: for compilers alone.
_META_KERNELS = "torch._meta_registrations"


class _UntilAsked(ModuleType):
    """Stands for a module that is imported once one of its names is used."""

    def __getattr__(self, name: str) -> Any:
        # Those of every module are asked for by what looks through all of them.
        if name.startswith("__"):
            raise AttributeError(name)
        _withdraw(self.__name__, self)
        return getattr(importlib.import_module(self.__name__), name)


def import_eager_torch() -> None:
    """Import torch, unless it is imported already, without the kernels of its meta device.

    For processes that compute with tensors on the CPU alone. `torch.compile`, fake tensors and tensors on the meta
    device work there only after an `import torch._meta_registrations`.
    """
    if "torch" in sys.modules:
        return
    kernels = _UntilAsked(_META_KERNELS)
    with _instead({_META_KERNELS: kernels}):
        torch = importlib.import_module("torch")
    if vars(torch).get("_meta_registrations") is kernels:
        del torch._meta_registrations


@contextmanager
def _instead(stand_ins: Mapping[str, ModuleType]) -> Iterator[None]:
    """Let imports find `stand_ins` in place of modules that are not loaded already."""
    absent = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name, stand_in in absent.items():
            _withdraw(name, stand_in)


def _withdraw(name: str, stand_in: ModuleType) -> None:
    """Let the next import find the module in place of its stand-in."""
    if name in sys.modules and sys.modules[name] is stand_in:
        del sys.modules[name]
