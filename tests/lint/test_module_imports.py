"""No circle of imports, also none through functions; few modules that are too small to stand alone."""

from pathlib import Path

import pytest

from tests.lint.module_imports import PACKAGES, Modules, circles, modules_of, only_for_a_neighbour

ROOT = Path(__file__).parents[2]
SMALL_LINES, MOST_SMALL = 60, 2
MOST_MODULES = 700
"""Of the packages that ship, `__init__` and the database's revisions apart. Where one more is needed, two small ones
become one."""


@pytest.fixture(scope="module")
def every() -> Modules:
    return modules_of(ROOT, (*PACKAGES, "benchmarks", "tests"))


@pytest.fixture(scope="module")
def modules(every: Modules) -> Modules:
    """Those that ship, which import none of the others."""
    files = {name: path for name, path in every.files.items() if name.split(".")[0] in PACKAGES}
    return Modules(files, {name: every.imports[name] for name in files})


def test_no_modules_import_each_other_in_a_circle(every: Modules) -> None:
    assert circles(every.imports) == []


def test_the_packages_have_no_more_modules_than_they_had(modules: Modules) -> None:
    files = [path for path in modules.files.values() if path.name != "__init__.py" and path.parent.name != "versions"]
    assert 500 < len(files) <= MOST_MODULES


def test_few_small_modules_are_there_for_one_module_of_their_folder(modules: Modules) -> None:
    small = only_for_a_neighbour(modules, SMALL_LINES)
    assert len(small) <= MOST_SMALL, f"join these with the modules that import them: {small}"


def test_imports_are_found_at_any_depth_but_not_for_type_checkers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["import drawn.whole", "from drawn import one", "from drawn.two import name", "import os"]
    lines += [
        "def f():\n    if lines:\n        from drawn import three",
        "class C:\n    def f(self):\n        import drawn.four",
    ]
    lines += ["if TYPE_CHECKING:\n    import drawn.five\nelse:\n    import drawn.six"]
    texts = {"": "name = 1", "importer": "\n".join(lines), "named": "from drawn import name"}
    (tmp_path / "drawn").mkdir()
    for name in (*texts, "whole", "one", "two", "three", "four", "five", "six"):
        (tmp_path / "drawn" / f"{name or '__init__'}.py").write_text(texts.get(name, ""))
    monkeypatch.syspath_prepend(tmp_path)
    imports = modules_of(tmp_path, ["drawn"]).imports
    found = {f"drawn.{name}" for name in ("whole", "one", "two", "three", "four", "six")}
    assert (imports["drawn.importer"], imports["drawn.named"]) == (found, {"drawn"})


def test_a_circle_has_all_modules_that_reach_each_other() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}, "g": set()}
    assert circles({name: frozenset(of) for name, of in imports.items()}) == [["a", "b", "c"], ["d", "e"]]


def test_a_small_module_of_one_neighbour_is_found(tmp_path: Path) -> None:
    lengths = {"one": 1, "two": 1, "three": 2, "small": 0, "shared": 0, "large": 3}
    imports = {"one": ["small"], "two": ["shared"], "three": ["shared", "large"]}
    files = {f"tiers.{name}": tmp_path / f"{name}.py" for name in lengths}
    for name, lines in lengths.items():
        files[f"tiers.{name}"].write_text("x = 1\n" * lines)
    modules = Modules(
        files, {f"tiers.{name}": frozenset(f"tiers.{one}" for one in imports.get(name, [])) for name in lengths}
    )
    assert only_for_a_neighbour(modules, 3) == ["tiers.small"]
    assert only_for_a_neighbour(modules, 4) == ["tiers.large", "tiers.small"]
