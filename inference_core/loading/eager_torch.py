"""Imports torch without what only compilers of its programs need."""

import importlib
import sys
from types import ModuleType
from typing import Any


def import_eager_torch() -> None:
    """Import torch, unless it is imported already, without the Python kernels of its meta device and the libraries of
    references and decompositions that they import: a quarter of the time of its import.

    For processes that compute with tensors on the CPU alone. `torch.compile`, fake tensors and tensors on the meta
    device work there only after an `import torch._meta_registrations`.
    """
    if "torch" in sys.modules:
        return
    placeholder = _Placeholder("torch._meta_registrations")
    sys.modules[placeholder.__name__] = placeholder
    try:
        torch = importlib.import_module("torch")
    finally:
        placeholder.leave()
    if vars(torch).get("_meta_registrations") is placeholder:
        del torch._meta_registrations


class _Placeholder(ModuleType):
    """Stands for a module while torch is imported, which asks it for nothing; a torch that does gets the module."""

    def __getattr__(self, name: str) -> Any:
        # Those of every module are asked for by what looks through all of them.
        if name.startswith("__"):
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(self.__name__), name)

    def leave(self) -> None:
        """Let the next import find the module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
