"""Which modules of the packages that ship import which, at any depth: imports in functions count, those for type
checkers alone do not.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("gateway", "quality", "classifier", "tiers", "inference_core", "migrations")
Imports = Mapping[str, frozenset[str]]


class Modules(NamedTuple):
    """The file of each module, by its dotted name, and the modules of ours that it imports."""

    files: dict[str, Path]
    imports: dict[str, frozenset[str]]


def modules_of(root: Path, packages: Sequence[str] = PACKAGES) -> Modules:
    """Read all modules of the packages below `root`. A package's `__init__` goes by the package's name."""
    found = [path for package in packages for path in (root / package).rglob("*.py")]
    files = {_name(path.relative_to(root)): path for path in found}
    return Modules(files, {name: imports_of(path.read_text(), files) - {name} for name, path in files.items()})


def imports_of(source: str, known: Mapping[str, object]) -> frozenset[str]:
    """Return the `known` modules that a source imports; `from a import b` is the module a.b if there is one, else a."""
    names = {
        full if (full := f"{module}.{name}" if name else module) in known else module
        for module, name in _imported(ast.parse(source))
    }
    return frozenset(names & known.keys())


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


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import below a node, of which no expression has one; the name is empty for `import
    module`."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.orelse:
                yield from _imported(ast.Module([part], []))
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, "") for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield from ((child.module, alias.name) for alias in child.names)
        yield from _imported(child)
