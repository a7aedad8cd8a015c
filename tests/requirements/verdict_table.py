"""The recorded verdicts on mutants of rows as a table of docs/results/mutants.md."""

from collections import Counter
from pathlib import Path

from benchmarks.report.markdown import markdown
from benchmarks.report.page import filled
from tests.requirements.row_mutants import ROOT, read_mutants, read_record, requirements_by_key

PAGE = ROOT / "docs" / "results" / "mutants.md"
PLACE = "row-mutants"


def verdict_table() -> str:
    """Return for each chapter of the requirements its rows, its mutants, and how many of them have which verdict."""
    rows, recorded = requirements_by_key(), read_record()
    chapters = list(dict.fromkeys(row.chapter for row in rows.values()))
    counts: dict[str, Counter[str]] = {chapter: Counter() for chapter in [*chapters, "all"]}
    for row in rows.values():
        counts[row.chapter]["rows"] += 1
    for mutant in read_mutants().mutants:
        verdict = recorded[mutant.key].verdict if mutant.key in recorded else "none"
        counts[rows[mutant.row].chapter].update(["mutants", verdict])
    for chapter in chapters:
        counts["all"] += counts[chapter]
    columns = ("rows", "mutants", "killed", "lives", "skipped", "error", "none")
    head = ["requirements", "rows", "mutants", "killed", "live", "tests skipped", "tests do not run", "no verdict"]
    return markdown(head, [[name, *(str(count[column]) for column in columns)] for name, count in counts.items()])


def fill_page(page: Path = PAGE) -> None:
    """Put the table into its place of the page."""
    page.write_text(filled(page.read_text(encoding="utf-8"), {PLACE: verdict_table()}), encoding="utf-8")
