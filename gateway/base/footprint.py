"""What is not imported, and what memory is given back, so that processes stay small and start fast.

Parts of libraries that a server does not need, and would otherwise import and keep in memory, have stand-ins in
`sys.modules`, here and nowhere else.

Bought: 19 MiB of 111 of a gateway process that is ready to serve and a quarter of a second of its start, and as much
again where torch computes on the CPU (18 MiB of 220). Paid: each library must go on without the part, which
`tests/gateway/base/test_unused_modules.py` holds for all of them together.
"""

import ctypes
import gc
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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


# httpx's command line, which imports rich and Pygments, and Mako's coloured tracebacks, which import Pygments: both
# libraries go on without. Together seven megabytes and a twentieth of a second of a start.
_CONSOLE_ONLY = ("httpx._main", "mako.ext.pygmentplugin")

# SQLAlchemy's sessions, which import its object-relational mapper; its package for asyncio imports them by name. Every
# query here is of tables. Six megabytes, and a twentieth of a second of a start.
_SESSIONS = ("sqlalchemy.ext.asyncio.scoping", "sqlalchemy.ext.asyncio.session")

# Packages that litestar has plugins for. No body here is an attrs class or a pydantic model; pydantic is only there for
# the price list. Ten megabytes, and a tenth of a second of a start.
_WITH_PLUGINS = ("pydantic", "attr")

# Python kernels of torch's meta device, with the references and decompositions that they import: for compilers alone.
_META_KERNELS = "torch._meta_registrations"


class _Unused(ModuleType):
    """Stands for a module whose names are imported and never used."""

    def __getattr__(self, name: str) -> Any:
        # Those of every module are asked for by what looks through all of them.
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _UntilAsked(_Unused):
    """Stands for a module that is imported once one of its names is used."""

    def __getattr__(self, name: str) -> Any:
        super().__getattr__(name)
        _withdraw(self.__name__, self)
        return getattr(importlib.import_module(self.__name__), name)


def leave_out_unused_modules() -> None:
    """Make importing what only consoles need fail, as if what it needs were not installed, and sessions of the database
    be nothing; call it before their libraries are imported."""
    for name in _CONSOLE_ONLY:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    for name in _SESSIONS:
        sys.modules.setdefault(name, _Unused(name))


def import_litestar() -> None:
    """Import litestar without PyYAML, which it imports to render a schema that is served as JSON only."""
    with _instead({"yaml": _Unused("yaml")}):
        import litestar.openapi.plugins  # noqa: F401


def without_plugins() -> AbstractContextManager[None]:
    """Make litestar's plugins for other packages' classes find none of those that are not loaded already."""
    return _instead(dict.fromkeys(_WITH_PLUGINS))


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
def _instead(stand_ins: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Let imports find `stand_ins` in place of modules that are not loaded already; None: as if not installed."""
    absent = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, stand_in in absent.items():
            _withdraw(name, stand_in)


def _withdraw(name: str, stand_in: ModuleType | None) -> None:
    """Let the next import find the module in place of its stand-in."""
    if name in sys.modules and sys.modules[name] is stand_in:
        del sys.modules[name]
