"""Rows of habits: every one has its source, and its patterns have the groups that are read."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given

from tests.recordings.playing import steps_of
from tests.recordings.recording import files, recordings
from tests.tiers.dialects.test_client_forms import BODIES
from tiers.dialects import quirks
from tiers.dialects.quirks import ClientRows, Row, client_rows, edit_body, pattern_of, read_rows
from tiers.dialects.refusals import REFUSAL_ROWS, WORDINGS
from tiers.dialects.rules import server_rows
from tiers.dialects.written.call_dialects import NamedDialect
from tiers.dialects.written.written_calls import WRITTEN

FILES: list[Any] = [server_rows(), client_rows(), REFUSAL_ROWS, WORDINGS, WRITTEN]
ROWS = [
    pytest.param(row, id=f"{type(row).__name__} {index}")
    for file in FILES
    for rows in (getattr(file, name) for name in file.__struct_fields__)
    if isinstance(rows, list | tuple)
    for index, row in enumerate(rows)
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
        "written",
    }


def test_a_name_in_braces_stands_for_a_pattern() -> None:
    pattern = pattern_of(r"at most {limit}.{0,3}$", {"limit": r"(?P<limit>\d+)"})
    match = pattern.search("AT MOST 12 .")
    assert match is not None
    assert match["limit"] == "12"


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


EDITED: dict[str, tuple[quirks.Dialect, dict[str, Any], dict[str, Any], list[str]]] = {
    "a field of another API": ("messages", {"stop": ["a"]}, {"stop_sequences": ["a"]}, []),
    "its own field counts": ("messages", {"stop": "a", "stop_sequences": ["b"]}, {"stop_sequences": ["b"]}, []),
    "null is as if it were not given": ("messages", {"stop": "a", "stop_sequences": None}, {"stop_sequences": "a"}, []),
    "a field within an object": (
        "messages", {"reasoning": {"effort": "low", "summary": "auto"}}, {"output_config": {"effort": "low"}}, [],
    ),
    "a text where an object belongs": ("responses", {"reasoning": "HIGH"}, {"reasoning": {"effort": "high"}}, []),
    "an object where it belongs": ("messages", {"thinking": {"type": "x"}}, {"thinking": {"type": "x"}}, []),
    "an object for a text": ("chat", {"reasoning_effort": {"effort": "low"}}, {"reasoning_effort": "low"}, []),
    "a copy": ("chat", {"think": "low"}, {"think": "low", "reasoning_effort": "low"}, []),
    "a copy of whole numbers alone": (
        "chat", {"thinking_budget": -1, "thinking": {"budget_tokens": 5}},
        {"thinking_budget": -1, "thinking": {"budget_tokens": 5}, "thinking_token_budget": 5}, [],
    ),
    "what a value means besides": ("chat", {"think": False}, {"think": False, "thinking_token_budget": 0}, []),
    "what is given besides counts": (
        "chat", {"think": False, "thinking_token_budget": 9}, {"think": False, "thinking_token_budget": 9}, [],
    ),
    "false is not zero": ("chat", {"top_p": False}, {"top_p": False}, []),
    "zero": ("completions", {"top_p": 0}, {"top_p": 1e-6}, []),
    "a value that is left out": ("chat", {"max_tokens": -1}, {}, []),
    "a value that is left out and named": ("responses", {"background": True}, {}, ["background"]),
    "in each object of a list": (
        "chat", {"messages": [{"role": "Human"}, None, {"role": "ai"}]},
        {"messages": [{"role": "user"}, None, {"role": "assistant"}]}, [],
    ),
    "objects of some types alone": (
        "chat", {"messages": [{"content": [{"type": "text", "content": "a"}, {"type": "x", "content": "a"}]}]},
        {"messages": [{"content": [{"type": "text", "text": "a"}, {"type": "x", "content": "a"}]}]}, [],
    ),
    "of other dialects alone": ("completions", {"max_tokens": -1, "stop_sequences": ["a"]},
                                {"max_tokens": -1, "stop_sequences": ["a"]}, []),
}  # fmt: skip


@pytest.mark.parametrize("habit", EDITED)
def test_a_body_is_written_as_its_dialect_has_it(habit: str) -> None:
    dialect, body, edited, left_out = EDITED[habit]
    assert edit_body(body, dialect) == left_out
    assert body == edited


@pytest.mark.parametrize("dialect", get_args(quirks.Dialect))
@given(body=BODIES)
def test_a_body_that_was_edited_needs_no_more(dialect: quirks.Dialect, body: dict[str, Any]) -> None:
    edit_body(body, dialect)
    again = copy.deepcopy(body)
    assert edit_body(again, dialect) == []
    assert again == body


def test_every_form_of_calls_is_read_and_begins_with_a_mark_that_is_looked_for() -> None:
    for form in WRITTEN.calls:
        assert list(form.dialects()), form.models
        assert len(form.marks) in (0, 3, 5, 6)
        if form.openers or form.json:
            begins = [*(section for section, _ in form.sections if section), *form.openers, *(form.json or ())[:1]]
            assert any(begin.startswith(WRITTEN.openers) for begin in begins), form.models


def test_every_edit_changes_a_request_of_some_recording() -> None:
    changed: set[int] = set()
    for file in files():
        for recording in recordings(file):
            for fields in (recording.fields, *steps_of(recording.fields)):
                for dialect, asked in (fields.get("asks") or {}).items():
                    if dialect in get_args(quirks.Dialect) and isinstance(asked, dict):
                        changed |= edits_that_change(asked.pop("extra_body", {}) | asked, dialect)
    rows = client_rows().edits
    assert [row for index, row in enumerate(rows) if index not in changed] == []


def edits_that_change(body: dict[str, Any], dialect: quirks.Dialect) -> set[int]:
    """The indices of the edits that change something of a body, each applied after those before it."""
    changing = set()
    for index, edit in enumerate(client_rows().edits):
        if dialect not in edit.dialects:
            continue
        tables = [table for path in edit.at for table in quirks._objects({"": [body]}, path)]
        if meant := [table for table in tables if edit.is_of(str(table.get("type")))]:
            before = copy.deepcopy(body)
            for table in meant:
                edit.change(table)
            changing |= {index} if body != before else set()
    return changing


def test_every_mark_of_thoughts_answers_and_calls_is_in_some_recording() -> None:
    texts = "".join(json.dumps(json.loads(file.read_text()), ensure_ascii=False) for file in files())
    marks = [row.opening for row in (*WRITTEN.thoughts, *WRITTEN.wrappers)]
    for form in WRITTEN.calls:
        for dialect in form.dialects():
            before = dialect.section[0] if isinstance(dialect, NamedDialect) else ""
            marks.append(f"{before}{dialect.opener}".strip())
    assert [mark for mark in marks if json.dumps(mark, ensure_ascii=False)[1:-1] not in texts] == []


def test_every_row_of_refusals_is_in_some_recording() -> None:
    said: set[str] = set()
    for recording in (recording for file in files() for recording in recordings(file)):
        for fields in (recording.fields, *steps_of(recording.fields)):
            said |= {*texts_of([fields.get("answers"), fields.get("refused")])}
    kinds = ("parameters", "keywords", "limits", "meanings", "lessons")
    rows = [row for kind in kinds for row in getattr(REFUSAL_ROWS, kind) if row.patterns]
    patterns = [[REFUSAL_ROWS.pattern(text) for text in row.patterns] for row in rows]
    matched = [any(pattern.search(text) for pattern in ways for text in said) for ways in patterns]
    assert [row for row, is_found in zip(rows, matched, strict=True) if not is_found] == []


def texts_of(value: Any) -> Iterator[str]:
    """The texts in a JSON value."""
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from texts_of(part)
