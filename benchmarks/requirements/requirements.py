"""The requirements as data: every row of docs/results/requirements.md with its evidence, or with what is missing."""

import re
from pathlib import Path

import msgspec

# Of a checkout; an installed package has no pages, and no requirement is then known.
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "requirements.md"
_HEADING = re.compile(r"## (.+)")
_CODE = re.compile(r"`([^`]+)`")


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """A row. `tests`: pytest ids, `commands`: for a shell; both fail where the row stops being true.

    `missing`: "" where all of it is done, "partly: …" where some is, "not done, because …" where nothing is.
    """

    key: str
    chapter: str
    text: str
    tests: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    missing: str = ""


def read_requirements(page: Path = PAGE) -> list[Requirement]:
    """Return the rows of all tables of `page` in their order; none if there is no page. Raises ValueError for a row
    that has not four cells."""
    if not page.is_file():
        return []
    rows, chapter = [], ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            chapter = heading[1]
        elif line.startswith("| ") and not line.startswith(("| ID |", "| --- ")):
            rows.append(_row(line, chapter))
    return rows


def _row(line: str, chapter: str) -> Requirement:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if len(cells) != 4:
        raise ValueError(f"a row has ID, requirement, evidence and what is missing; this one has {len(cells)}: {line}")
    key, text, evidence, missing = cells
    named = _CODE.findall(evidence)
    return Requirement(
        key=key,
        chapter=chapter,
        text=text,
        tests=tuple(code for code in named if "::" in code),
        commands=tuple(code for code in named if "::" not in code),
        missing=missing,
    )
