"""Redaction: texts are stored as the hook returns them, or not at all; the row stays."""

from pathlib import Path

import pytest

from quality.records.record import Attempt
from quality.records.redaction import (
    DROPPED,
    RedactionError,
    load_redaction,
    patterns_redaction,
    redacted,
)
from tests.quality.store.records import make_record

SECRET = "ada@example.com"


def hide(text: str) -> str:
    if "break" in text:
        raise ValueError(text)
    return text.replace(SECRET, "[mail]")


def say_nothing(text: str) -> None: ...


def test_every_text_of_a_record_is_redacted() -> None:
    failed = Attempt(tier=1, model="m", status="error", cost_usd=0.0, error=f"no route to {SECRET}")
    record = make_record(
        messages=[{"role": "user", "content": f"Write to {SECRET}"}],
        answer=f"Dear {SECRET}",
        reasoning=f"It is {SECRET}",
        error=f"{SECRET} failed",
        attempts=[failed],
        response_format={"json_schema": {"schema": {"enum": [SECRET, 1]}}},
    )

    kept = redacted(record, hide)

    assert SECRET not in str(kept)
    assert kept.messages == [{"role": "user", "content": "Write to [mail]"}]
    assert (kept.request_id, kept.cost_usd, kept.decision) == (record.request_id, record.cost_usd, record.decision)


def test_a_redaction_that_fails_drops_all_texts_and_no_row(caplog: pytest.LogCaptureFixture) -> None:
    record = make_record(answer="break it", error="an error", messages=[{"role": "user", "content": "fine"}])

    kept = redacted(record, hide)

    assert (kept.messages, kept.answer, kept.reasoning, kept.error) == (None, None, None, DROPPED)
    assert kept.prompt_tokens == record.prompt_tokens
    assert "break it" not in caplog.text


def test_patterns_of_a_file_are_struck_out(tmp_path: Path) -> None:
    path = tmp_path / "patterns"
    path.write_text("# mail addresses\n\n[\\w.]+@[\\w.]+\n\\b\\d{4}\\b\n", "utf-8")

    redact = load_redaction(str(path))

    assert redact(f"{SECRET} has the code 1234, not 12345") == "[redacted] has the code [redacted], not 12345"


def test_a_function_is_found_by_its_name_and_must_give_texts() -> None:
    assert load_redaction(f"{__name__}:hide")(SECRET) == "[mail]"
    kept = redacted(make_record(), load_redaction(f"{__name__}:say_nothing"))
    assert kept.answer is None


@pytest.mark.parametrize(
    "named", ["no.such_module:f", "quality.records.redaction:nothing", "quality.records.redaction:DROPPED", "gone"]
)
def test_a_redaction_that_does_not_exist_is_refused_at_once(named: str) -> None:
    with pytest.raises(RedactionError, match=named.partition(":")[0]):
        load_redaction(named)


@pytest.mark.parametrize("content", ["", "(", "# only a comment"])
def test_a_file_that_would_redact_nothing_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "patterns"
    path.write_text(content, "utf-8")
    with pytest.raises(RedactionError):
        patterns_redaction(path)
