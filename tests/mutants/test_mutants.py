"""The mutants of a source, and that a fork runs the tests of its group against the mutated module."""

import ast
import sys
from pathlib import Path

import pytest

from tests.mutants.groups import GROUPS, group_of
from tests.mutants.importing import MutatedFinder
from tests.mutants.mutate import mutants_of

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def changes(source: str) -> set[tuple[str, str]]:
    return {(mutant.was, mutant.became) for mutant in mutants_of(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("k < a", {("k < a", "k <= a")}),
        ("k is None", {("k is None", "k is not None")}),
        ("views * every", {("views * every", "views / every"), ("views * every", "views"), ("views * every", "every")}),
        ("a and not b", {("a and (not b)", "a or not b"), ("not b", "b")}),
        ("min(a, b)", {("min(a, b)", "max(a, b)"), ("min(a, b)", "pass")}),
        ("x = 3", {("3", "4")}),
        ("if a:\n    b()", {("if a:", "if not a:"), ("b()", "pass")}),
        ("def f() -> int:\n    return a", {("return a", "return None")}),
        ("x += 1", {("x += 1", "x -= 1"), ("1", "2")}),
        ("x: Literal[3] = y", set()),
        ("f'{a + 1}'", set()),
    ],
)
def test_each_node_has_its_faults(source: str, expected: set[tuple[str, str]]) -> None:
    assert changes(source) == expected


def test_a_mutant_differs_from_its_source_in_one_place() -> None:
    source = "def f(a, b):\n    return a < b and b < 3\n"
    plain = ast.unparse(ast.parse(source))
    texts = [ast.unparse(mutant.tree) for mutant in mutants_of(source)]
    assert len(set(texts)) == len(texts) == 5
    assert plain not in texts


@pytest.mark.parametrize(
    ("file", "was", "became"),
    [
        ("classifier/policy/decide.py", "k < least_of_key", "k <= least_of_key"),
        ("quality/monitor/e_detector.py", "views * settings.false_alarm_every", "settings.false_alarm_every"),
    ],
)
def test_faults_that_once_lived_are_among_the_mutants(file: str, was: str, became: str) -> None:
    assert (was, became) in changes((ROOT / file).read_text())


def test_an_import_gets_the_mutated_code_of_its_module_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile("answer = 43", str(ROOT / "tests" / "mutants" / "groups.py"), "exec")
    monkeypatch.setattr(sys, "meta_path", [MutatedFinder("mutated_module_of_this_test", code), *sys.meta_path])
    module = __import__("mutated_module_of_this_test")
    monkeypatch.delitem(sys.modules, "mutated_module_of_this_test")
    assert module.answer == 43


def test_every_group_has_files_and_tests() -> None:
    for path, tests in GROUPS.items():
        assert (ROOT / path).exists(), path
        assert all((ROOT / test).exists() for test in tests), path


def test_the_narrowest_group_is_taken_and_other_files_are_refused() -> None:
    assert group_of("tiers/catalog/pricing.py") == ("tests/tiers/catalog/test_pricing.py",)
    assert group_of("quality/monitor/drift.py") == ("tests/quality/monitor",)
    with pytest.raises(SystemExit, match=r"gateway/app.py is in no group"):
        group_of("gateway/app.py")
