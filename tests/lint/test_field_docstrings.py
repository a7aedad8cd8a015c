"""A field's meaning stands under the field: no class docstring explains its fields in a paragraph."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("inference_core/", "classifier/", "quality/", "gateway/", "tiers/")
NAMED = r"`(\w+)(?:\[[^\]`]*\])?`(?=((?:, | and )`\w+`)*(?: \([^)]*\))?:\s)"
# Where a clause begins, or next in a list of names.
EXPLAINED = re.compile(rf"(?:\A|[.;,]\s|\n\n|- )\s*{NAMED}")


def explained_fields(source: str) -> Iterator[str]:
    """Yield `Class.field` for each field that its class's docstring explains as "`field`: meaning"."""
    named = {hit[1] for hit in re.finditer(NAMED, source)}
    if not named or not re.search(rf"^\s+(?:{'|'.join(named)}): ", source, re.MULTILINE):
        return  # most files: to parse them takes seconds
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            annotated = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            fields = {target.id for target in annotated if isinstance(target, ast.Name)}
            for hit in EXPLAINED.finditer(ast.get_docstring(node) or ""):
                if hit[1] in fields:
                    yield f"{node.name}.{hit[1]}"


def test_fields_are_explained_under_themselves() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    files = [path for path in listed if path.startswith(PACKAGES)]
    assert files
    hits = [f"{path}: {name}" for path in files for name in explained_fields(Path(path).read_text(encoding="utf-8"))]
    assert hits == []


def test_only_fields_of_the_class_count() -> None:
    source = '''
class Price:
    """A price of `unit`: what it costs. `usd`: US dollars; `steps[k]`, `last` (ascending): more. `other`: none."""
    unit: str
    usd: float
    """In a docstring under itself, `usd`: is no hit."""
    steps: list[int]
    last: int
    total = 0
'''
    assert list(explained_fields(source)) == ["Price.usd", "Price.steps", "Price.last"]
