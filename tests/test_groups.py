"""The Makefile finds the files of a group of tests by the marker in their text: there it has to stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# Of each target, what it selects and how it searches.
RULE = re.compile(r'^(test[\w-]*): .*\n.* -m "(.*)"(?: \\\n)?\s*\$\(call files_with,(.*)\)$', re.M)


@pytest.mark.parametrize(("target", "expression", "pattern"), RULE.findall(MAKEFILE))
def test_a_group_is_searched_for_by_the_markers_that_it_selects(target: str, expression: str, pattern: str) -> None:
    selected = expression.rpartition("and ")[2].strip("()").split(" or ")
    # The package hypothesis marks tests itself, in files that import it.
    searched = [part if part == "hypothesis" else part.removeprefix(r"mark\.") for part in pattern.split("|")]
    assert searched == selected, target


def test_no_other_file_marks_tests_of_these_groups() -> None:
    assert len(RULE.findall(MAKEFILE)) == MAKEFILE.count("$(call files_with") > 0
    markers = "|".join(pattern for _, _, pattern in RULE.findall(MAKEFILE))
    helpers = (path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_"))
    marking = re.compile("|".join(part for part in markers.split("|") if part != "hypothesis"))
    assert [str(path) for path in helpers if marking.search(path.read_text(encoding="utf-8"))] == []
