"""Which modules of the packages that ship import which, at any depth: imports in functions count, those for type
checkers alone do not.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grimp import build_graph

PACKAGES = ("gateway", "quality", "classifier", "tiers", "inference_core", "migrations")
Imports = Mapping[str, frozenset[str]]


class Modules(NamedTuple):
    """The file of each module, by its dotted name, and the modules of ours that it imports."""

    files: dict[str, Path]
    imports: dict[str, frozenset[str]]


def modules_of(root: Path, packages: Sequence[str] = PACKAGES) -> Modules:
    """Read all modules of the packages below `root`, a folder that Python imports from. A package's `__init__` goes by
    the package's name."""
    graph = build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    found = [path for package in packages for path in (root / package).rglob("*.py")]
    files = {_name(path.relative_to(root)): path for path in found}
    return Modules(files, {name: frozenset(graph.find_modules_directly_imported_by(name)) - {name} for name in files})


def circles(imports: Imports) -> list[list[str]]:
    """Return the groups of modules in which each one reaches every other (Tarjan 1972), sorted by name."""
    places: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        places[name] = lowest[name] = len(places)
        path.append(name)
        for other in imports[name]:
            if other not in places:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == places[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in imports:
        if name not in places:
            visit(name)
    return sorted(found)


def _name(path: Path) -> str:
    return ".".join(path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts)
