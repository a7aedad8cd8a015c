"""No circle of imports, also none through functions; few modules that are too small to stand alone."""

from pathlib import Path

import pytest

from tests.lint.module_imports import PACKAGES, Modules, circles, imports_of, modules_of, only_for_a_neighbour

ROOT = Path(__file__).parents[2]
SMALL_LINES, MOST_SMALL = 60, 2
MOST_MODULES = 690
"""Of the packages that ship, `__init__` apart. Where one more is needed, two small ones become one."""


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
    files = [path for path in modules.files.values() if path.name != "__init__.py"]
    assert 500 < len(files) <= MOST_MODULES


def test_few_small_modules_are_there_for_one_module_of_their_folder(modules: Modules) -> None:
    small = only_for_a_neighbour(modules, SMALL_LINES)
    assert len(small) <= MOST_SMALL, f"join these with the modules that import them: {small}"


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import a.b", {"a.b"}),
        ("from a import b", {"a.b"}),
        ("from a.b import name", {"a.b"}),
        ("from a import name", {"a"}),
        ("def f():\n    if x:\n        from a import b", {"a.b"}),
        ("class C:\n    def f(self):\n        import a", {"a"}),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import a.b", {"a.b"}),
        ("import os", set()),
    ],
)
def test_imports_are_found_at_any_depth_but_not_for_type_checkers(source: str, imported: set[str]) -> None:
    assert imports_of(source, {"a": 1, "a.b": 1}) == imported


def test_a_circle_has_all_modules_that_reach_each_other() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}, "g": set()}
    assert circles({name: frozenset(of) for name, of in imports.items()}) == [["a", "b", "c"], ["d", "e"]]


def test_a_small_module_of_one_neighbour_is_found(tmp_path: Path) -> None:
    texts = {"one": "import tiers.small\n", "small": "", "shared": "", "two": "import tiers.shared\n"}
    texts["three"] = "import tiers.shared\nimport tiers.large\n"
    texts["large"] = "x = 1\n" * 3
    (tmp_path / "tiers").mkdir()
    for name, text in texts.items():
        (tmp_path / "tiers" / f"{name}.py").write_text(text)
    assert only_for_a_neighbour(modules_of(tmp_path), 3) == ["tiers.small"]
    assert only_for_a_neighbour(modules_of(tmp_path), 4) == ["tiers.large", "tiers.small"]
