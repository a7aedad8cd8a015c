"""Gives one module other code than its file has."""

import importlib.machinery
import importlib.util
from collections.abc import Sequence
from types import CodeType, ModuleType


class MutatedFinder:
    """Put first on `sys.meta_path`: the module `name` runs `code`; all others are found as usual."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name, self._code = name, code

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._code.co_filename, loader=_Loader(self._code))


class AbsentFinder:
    """Put first on `sys.meta_path`: the module `name` cannot be imported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name == self._name:
            raise ImportError(f"{name} is left out")


class _Loader:
    def __init__(self, code: CodeType) -> None:
        self._code = code

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, vars(module))
