"""Names that mean anything: how many functions and parameters have them, which only falls."""

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("gateway", "classifier", "tiers", "inference_core", "quality", "migrations")
CEILINGS = {
    "asked": 46,
    "begun": 6,
    "found": 24,
    "given": 28,
    "kept": 17,
    "known": 9,
    "made": 13,
    "noted": 3,
    "obeyed": 0,
    "one": 39,
    "passed": 10,
    "place": 33,
    "put": 18,
    "routed": 11,
    "ruled": 2,
    "said": 46,
    "sealed": 2,
    "seen": 21,
    "sent": 9,
    "shown": 38,
    "taken": 22,
    "told": 16,
    "wanted": 46,
}
"""Functions and parameters of these names in the product. A better name says what the value is: a participle makes a
verb, a value and a predicate look alike."""


def named(source: str) -> Iterator[str]:
    """The names of a module's functions and of their parameters, without leading underscores."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name.strip("_")
        elif isinstance(node, ast.arg):
            yield node.arg.strip("_")


def test_functions_and_parameters_with_vague_names_become_fewer() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    files = [path for path in listed if path.startswith(PACKAGES)]
    counts = Counter(name for path in files for name in named(Path(path).read_text(encoding="utf-8")))
    rose = {name: counts[name] for name, most in CEILINGS.items() if counts[name] > most}
    assert rose == {}, "a count that rose wants a better name"


def test_functions_methods_and_parameters_count() -> None:
    assert Counter(named("def found(one, *, _given):\n    async def _found(): pass\n    lambda one: one\n")) == {
        "found": 2,
        "one": 2,
        "given": 1,
    }
