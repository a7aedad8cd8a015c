"""Rows of habits: every one has its source, and its patterns have the groups that are read."""

import re
from pathlib import Path
from typing import Any

import pytest

from tiers.dialects import quirks
from tiers.dialects.quirks import ClientRows, Row, client_rows, pattern_of, read_rows
from tiers.remote.refusals import REFUSAL_ROWS
from tiers.remote.rules import server_rows
from tiers.remote.too_long import WORDINGS

FILES: list[Any] = [server_rows(), client_rows(), REFUSAL_ROWS, WORDINGS]
ROWS = [
    pytest.param(row, id=f"{type(row).__name__} {place}")
    for file in FILES
    for rows in (getattr(file, name) for name in file.__struct_fields__)
    if isinstance(rows, list | tuple)
    for place, row in enumerate(rows)
    if isinstance(row, Row)
]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_its_source_and_when_it_was_read(row: Row) -> None:
    assert re.match(r"https://|assumed$|[\w.-]+/[\w.-]+: \w|captured$", row.source)
    assert re.fullmatch(r"20\d\d-[01]\d", row.seen)


def test_every_file_of_rows_is_read_by_someone() -> None:
    assert {path.stem for path in (Path(quirks.__file__).parent / "quirks").iterdir()} == {
        "clients",
        "overflow",
        "refusals",
        "servers",
    }


def test_a_name_in_braces_stands_for_a_pattern() -> None:
    pattern = pattern_of(r"at most {limit}.{0,3}$", {"limit": r"(?P<limit>\d+)"})
    found = pattern.search("AT MOST 12 .")
    assert found is not None
    assert found["limit"] == "12"


@pytest.mark.parametrize("pattern", WORDINGS.compiled(), ids=lambda pattern: pattern.pattern[:40])
def test_a_wording_of_overflow_has_no_groups_but_counts(pattern: re.Pattern[str]) -> None:
    assert pattern.groupindex.keys() <= {"prompt", "answer", "limit", "total"}
    assert not re.search(r"(?<!\\)\{[a-z]", pattern.pattern), "a name in braces that stands for nothing"


def test_a_refusal_names_what_is_refused_in_its_words_or_its_row() -> None:
    for parameters in REFUSAL_ROWS.parameters:
        for text in parameters.patterns:
            assert ("name" in REFUSAL_ROWS.pattern(text).groupindex) is not bool(parameters.parameters)
    for keywords in REFUSAL_ROWS.keywords:
        for text in keywords.patterns:
            assert REFUSAL_ROWS.pattern(text).groups == (not keywords.keywords)
    for limit in REFUSAL_ROWS.limits:
        assert all("most" in REFUSAL_ROWS.pattern(text).groupindex for text in limit.patterns)
    lessons = REFUSAL_ROWS.lessons
    assert len({lesson.name for lesson in lessons}) == len(lessons)
    texts = [text for row in [*REFUSAL_ROWS.parameters, *lessons] for text in row.patterns]
    assert not [text for text in texts if re.search(r"(?<!\\)\{[a-z]", REFUSAL_ROWS.pattern(text).pattern)]


def test_a_field_that_no_row_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = '[[clients]]\nname = "a"\nversion = "1"\nsource = "captured"\nseen = "2026-11"\nprodcuts = ["a"]\n'
    (tmp_path / "clients.toml").write_text(row, encoding="utf-8")
    monkeypatch.setattr(quirks, "_FOLDER", tmp_path)
    with pytest.raises(ValueError, match="prodcuts"):
        read_rows("clients", ClientRows)
