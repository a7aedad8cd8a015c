"""docs/results/requirements.md is whole: every requirement once, with tests that exist or with the reason why not."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.requirements.requirements import read_requirements

ROOT = Path(__file__).parents[2]
ROWS = read_requirements(ROOT / "docs" / "results" / "requirements.md")
# How many requirements each chapter has.
CHAPTERS = {
    "FR": 5, "GW": 20, "RT": 14, "TI": 16, "KV": 11, "BS": 13, "AT": 9, "QZ": 12, "SD": 12, "PX": 6, "SO": 3, "LO": 3,
    "QM": 12, "OB": 13, "CA": 3, "AS": 7, "TB": 12, "CK": 9,
}  # fmt: skip
KEYS = [f"{chapter}-{number:02}" for chapter, count in CHAPTERS.items() for number in range(1, count + 1)]
CITED = re.compile(rf"\b(?:{'|'.join(CHAPTERS)})-\d\d\b")
PACKAGES = ("benchmarks", "classifier", "gateway", "inference_core", "migrations", "quality", "tests", "tiers")


def names_of(file: Path) -> set[str]:
    """Functions and classes of a test module, by their names."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, kinds)}


def texts() -> Iterator[tuple[Path, str]]:
    """Everything that may cite a requirement."""
    for pattern in ("*.md", "docs/*.md", "docs/reference/*.md", *(f"{package}/**/*.py" for package in PACKAGES)):
        for path in ROOT.glob(pattern):
            yield path, path.read_text(encoding="utf-8")


def test_every_requirement_has_one_row_in_its_chapter() -> None:
    assert [row.key for row in ROWS] == KEYS
    assert len({row.chapter for row in ROWS}) == len(CHAPTERS) - 1, "structured output and LoRA share one"
    assert all(row.text for row in ROWS)


def test_a_row_names_its_evidence_or_says_why_there_is_none() -> None:
    for row in ROWS:
        assert re.match(r"$|partly: .|not done, because .", row.missing), row.key
        assert row.tests or row.commands or row.missing.startswith("not done"), row.key


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "results" / "requirements.md").read_text(encoding="utf-8")
    known: dict[str, set[str]] = {}
    for test in {*(test for row in ROWS for test in row.tests), *re.findall(r"`(tests/[\w/]+\.py::\w+)`", page)}:
        path, _, name = test.partition("::")
        if path not in known:
            known[path] = names_of(ROOT / path)
        assert name in known[path], test


def test_every_requirement_that_is_cited_exists() -> None:
    unknown = {(str(path.relative_to(ROOT)), key) for path, text in texts() for key in CITED.findall(text)}
    assert {(path, key) for path, key in unknown if key not in KEYS} == set()


def test_a_row_says_which_of_its_tests_a_run_may_leave_out() -> None:
    page = (ROOT / "docs" / "results" / "requirements.md").read_text(encoding="utf-8")
    for row in ROWS:
        for test in row.tests:
            path, _, name = test.partition("::")
            said = re.search(re.escape(f"`{test}`") + r" \(([^)]*)\)", page)
            for note in left_out(path, marks_of(ROOT / path, name)):
                assert said is not None, f"{row.key}: {test} ({note})"
                assert note in said[1], f"{row.key}: {test} ({note})"


def left_out(path: str, marks: set[str]) -> list[str]:
    """What a row has to say of a test with these marks."""
    notes = {
        "marked slow, so not part of .ci/run": "slow" in marks,
        "skipped where the machine lacks what it needs": bool(marks & {"skipif", "importorskip"}),
        "of make test-deploy": "deploy" in marks,
        "of make test-kernels": path.startswith("tests/inference_core/triton_kernels/"),
    }
    return [note for note, holds in notes.items() if holds]


def marks_of(file: Path, name: str) -> set[str]:
    """The names of pytest's marks of a test, its module's included, and `importorskip` where its module calls it."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        marked: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Expr) and "importorskip(" in ast.unparse(node):
            found.add("importorskip")
        if isinstance(node, ast.Assign) and any(ast.unparse(one) == "pytestmark" for one in node.targets):
            marked = [node.value]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            marked = node.decorator_list
        found |= {one.attr for each in marked for one in ast.walk(each) if isinstance(one, ast.Attribute)}
    return found
