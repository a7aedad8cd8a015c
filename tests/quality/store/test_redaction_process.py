"""Records and texts are redacted in a separate process, and lost if that takes too long."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from quality.records.record import Record
from quality.records.redaction import patterns_redaction, redacted
from quality.records.redaction_process import RedactionProcess, num_chars
from tests.quality.store.test_redaction import make_record

MAIL = r"[\w.+-]+@[\w-]+\.[\w.]+"
# A megabyte without an @ has the expression look at half of a million times a million characters.
CHOKES = "x" * 1_000_000
# The expression (a+)+b, which an operator may have written, tries two to the power of this length.
EXPONENTIAL, SHORT = "(a+)+b", "a" * 60


@pytest.fixture
def patterns(tmp_path: Path) -> Path:
    path = tmp_path / "patterns"
    path.write_text(MAIL)
    return path


def long_record(text: str, request_id: str = "chatcmpl-1") -> Record:
    return msgspec.structs.replace(
        make_record(), request_id=request_id, messages=[{"role": "user", "content": text}], error=None
    )


async def test_a_record_is_redacted_as_in_this_process(patterns: Path) -> None:
    process = RedactionProcess(str(patterns))
    records = [long_record(f"{'word ' * 1000}{name}@example.org", name) for name in ("ada", "bob")]
    found = await asyncio.gather(*map(process.redacted, records))
    await process.close()
    redact = patterns_redaction(patterns)
    assert list(found) == [redacted(record, redact) for record in records]
    assert all(record.messages is not None and "[redacted]" in record.messages[0]["content"] for record in found)


async def test_a_text_that_takes_too_long_is_dropped_and_the_next_is_redacted(
    patterns: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = RedactionProcess(str(patterns), seconds=1.0)
    dropped, found = await asyncio.gather(
        process.redacted(long_record(CHOKES, "chatcmpl-9")), process.redacted(long_record("word " * 1000))
    )
    await process.close()
    assert (dropped.messages, dropped.answer) == (None, None)
    assert dropped.cost_usd == make_record().cost_usd
    assert found.messages == [{"role": "user", "content": "word " * 1000}]
    assert "chatcmpl-9" in caplog.text


async def test_a_text_is_redacted_and_a_short_one_that_takes_too_long_is_dropped_while_others_run(
    tmp_path: Path,
) -> None:
    path = tmp_path / "patterns"
    path.write_text(f"{MAIL}\n{EXPONENTIAL}\n")
    process = RedactionProcess(str(path), seconds=1.0)
    assert await process.text("ask ada@example.org") == "ask [redacted]"
    dropped, turns = asyncio.create_task(process.text(SHORT)), 0
    while not dropped.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert await dropped is None
    assert turns > 10
    assert (await process.redacted(long_record(SHORT))).messages is None
    assert await process.text("still here") == "still here"
    await process.close()


async def test_a_text_whose_redaction_fails_is_dropped() -> None:
    process = RedactionProcess("tests.quality.store.test_redaction:say_nothing")
    assert await process.text("anything") is None
    await process.close()


async def test_a_failure_in_the_process_drops_the_texts(caplog: pytest.LogCaptureFixture) -> None:
    named = "tests.quality.store.test_redaction:say_nothing"
    process = RedactionProcess(named)
    found = await process.redacted(long_record("word " * 1000))
    await process.close()
    assert found.messages is None
    assert "the redaction of request chatcmpl-1 failed" in caplog.text


async def test_a_redaction_that_is_gone_drops_the_texts(tmp_path: Path) -> None:
    process = RedactionProcess(str(tmp_path / "gone"))
    assert (await process.redacted(long_record("word " * 1000))).messages is None
    await process.close()


async def test_a_cancelled_redaction_leaves_no_answer_for_the_next(patterns: Path) -> None:
    process = RedactionProcess(str(patterns))
    first = asyncio.create_task(process.redacted(long_record("a " * 2000, "chatcmpl-1")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    found = await process.redacted(long_record("b " * 2000, "chatcmpl-2"))
    await process.close()
    assert (found.request_id, found.messages) == ("chatcmpl-2", [{"role": "user", "content": "b " * 2000}])


async def test_more_than_may_wait_is_dropped_at_once(patterns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quality.records.redaction_process.MOST_WAITING_CHARS", 10_000)
    process = RedactionProcess(str(patterns))
    found = await asyncio.gather(*(process.redacted(long_record("word " * 1500, f"chatcmpl-{k}")) for k in range(2)))
    await process.close()
    assert [record.messages is None for record in found] == [False, True]


def test_all_texts_count() -> None:
    record = msgspec.structs.replace(long_record("four"), answer="seven77", reasoning="two", response_format=None)
    assert num_chars(record) == 14
    assert num_chars(msgspec.structs.replace(record, response_format={"type": "x" * 100})) > 114
