"""No circle of imports, also none through functions."""

from pathlib import Path

import pytest

from tests.lint.module_imports import PACKAGES, Modules, circles, modules_of

ROOT = Path(__file__).parents[2]
MOST_MODULES = 709
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
