"""The mutants of a source, which tests are run against one, and that a fork runs them with the mutated code."""

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.forks import MOST_BYTES, forked
from tests.mutants.groups import GROUPS, group_of
from tests.mutants.importing import MutatedFinder
from tests.mutants.in_place import LoadedFunctions
from tests.mutants.mutate import mutants_of
from tests.mutants.reached import lines_reached

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
        ("@dataclass(frozen=True)\nclass A(Struct, kw_only=True):\n    x: int = y", set()),
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


def test_a_mutant_has_the_lines_of_its_own_statement() -> None:
    source = "@cache(\n    3)\ndef f(a):\n    if (a and\n        b):\n        return g(a,\n            1)\n"
    assert {(mutant.was, *sorted(mutant.lines)) for mutant in mutants_of(source)} == {
        ("3", 1, 2, 3), ("a and b", 4, 5), ("return g(a, 1)", 6, 7), ("1", 6, 7)
    }  # fmt: skip


SOURCE = """
def outer(a):
    def inner(b):
        return a + b

    return inner


class Kept:
    def twice(self, a):
        return [x * 2 for x in [a]][0]


def untouched():
    return 1
"""


def test_functions_that_are_loaded_get_the_code_of_a_mutant(tmp_path: Path) -> None:
    file = str(tmp_path / "module.py")
    names: dict[str, Any] = {}
    original = compile(SOURCE, file, "exec")
    exec(original, names)
    added, twice = names["outer"](1), names["Kept"]().twice
    functions = LoadedFunctions([file])

    def becomes(old: str, new: str) -> tuple[bool, int, int]:
        replaced = functions.replace(original, compile(SOURCE.replace(old, new), file, "exec"))
        return replaced, added(5), twice(5)

    # Each in a fork: it stays replaced.
    assert [
        forked(lambda old=old, new=new: becomes(old, new))
        for old, new in (("a + b", "a - b"), ("x * 2", "x"), ("[x * 2 for x in [a]][0]", "None"))
    ] == [[True, -4, 10], [True, 6, 5], [True, 6, None]]
    assert forked(lambda: becomes("class Kept", "limit = 3\nclass Kept"))[0] is False, "no function differs"


def test_the_lines_that_run_are_known_in_all_threads_and_of_no_other_file(tmp_path: Path) -> None:
    file = str(tmp_path / "module.py")
    names: dict[str, Any] = {}
    exec(compile(SOURCE, file, "exec"), names)

    def lines() -> dict[str, list[int]]:
        with lines_reached([file]) as reached:
            names["Kept"]().twice(3)
            thread = threading.Thread(target=names["untouched"])
            thread.start()
            thread.join()
        names["outer"](1)
        return {name: sorted(found) for name, found in reached.items()}

    # In a fork: it replaces the tracing of this process.
    assert forked(lines) == {file: [11, 15]}


def test_a_fork_returns_what_it_made_and_none_if_it_ends_or_takes_too_long() -> None:
    assert forked(lambda: {"made": [1, 2]}) == {"made": [1, 2]}
    assert forked(lambda: os._exit(0)) is None
    assert forked(lambda: 1 / 0) is None
    assert forked(lambda: len(bytearray(MOST_BYTES))) is None
    began = time.monotonic()
    assert forked(signal.pause, limit=0.1) is None
    assert time.monotonic() - began < 30


def test_a_mutant_lives_where_no_test_fails_and_is_killed_where_one_does() -> None:
    file = "tiers/catalog/pricing.py"
    lines = (ROOT / file).read_text().splitlines()
    number = {text: next(at for at, line in enumerate(lines, start=1) if text in line)
              for text in ("return reuse * saved >", "@lru_cache(maxsize=")}  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutants", file, *(f"--line={line}" for line in number.values())],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    killed, lives = run.stdout.splitlines()
    assert killed.startswith(f"{file}: 6 of 7 killed")
    assert lives == f"  line {number['@lru_cache(maxsize=']}: 1024  ->  1025"


@pytest.mark.parametrize(
    ("file", "was", "became"),
    [
        ("classifier/policy/decide.py", "k < least_of_key", "k <= least_of_key"),
        ("quality/monitor/detectors.py", "views * settings.false_alarm_every", "settings.false_alarm_every"),
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


def test_a_file_has_the_group_of_its_path_and_other_files_are_refused() -> None:
    assert group_of("classifier/policy/decide.py") == ("tests/classifier/policy",)
    assert group_of("quality/monitor/status.py") == ("tests/quality/monitor",)
    with pytest.raises(SystemExit, match=r"gateway/app.py is in no group"):
        group_of("gateway/app.py")
