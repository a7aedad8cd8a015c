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


def only_for_a_neighbour(modules: Modules, lines: int) -> list[str]:
    """Return the modules of fewer than `lines` lines that one module of their own folder imports, and no other."""
    importers: dict[str, list[str]] = {}
    for name, imported in modules.imports.items():
        for one in imported:
            importers.setdefault(one, []).append(name)

    def is_one(name: str, path: Path) -> bool:
        by = importers.get(name, [])
        return (
            not path.name.startswith("__")
            and len(by) == 1
            and modules.files[by[0]].parent == path.parent
            and len(path.read_text().splitlines()) < lines
        )

    return sorted(name for name, path in modules.files.items() if is_one(name, path))


def _name(path: Path) -> str:
    return ".".join(path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts)
