"""The store answers operators' queries, and deletes everything of an erased user."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import audit_events, erasures
from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import requests, routing_decisions
from quality.records.record import Recorded
from quality.store.queries import (
    ErasedRows,
    delete_key_data,
    get_request,
    insert_records,
    record_audit,
)
from tests.examples import examples
from tests.quality.store.records import make_embedding, make_record


async def insert(engine: AsyncEngine, *records: Recorded) -> None:
    async with engine.begin() as connection:
        await insert_records(connection, records)


async def stored_ids(engine: AsyncEngine) -> list[str]:
    """The ids of all stored requests, newest first."""
    async with engine.connect() as connection:
        newest_first = select(requests.c.request_id).order_by(requests.c.created_at.desc())
        return list(await connection.scalars(newest_first))


async def insert_verification(
    engine: AsyncEngine, request_id: str, *, key_id: str, created_at: float, cost: float = 0.0, answer: str = ""
) -> None:
    row = {
        "request_id": request_id, "key_id": key_id, "tier": 1, "model": "m", "sampled_probability": 0.05,
        "sampled_reason": "sample", "status": "done", "cost_usd": cost, "reserved_usd": 0.0,
        "created_at": created_at, "verifier_answer": answer, "attempts": 1,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(verifications.insert(), row)


async def insert_training_row(engine: AsyncEngine, request_id: str, *, key_id: str, created_at: float) -> None:
    row = {
        "request_id": request_id, "key_id": key_id, "source": "verification", "feature_spec": "f1",
        "embedding": struct.pack("<2f", 0.5, 1.5), "no_worse": [True, None, None, None], "weights": [1.0, 0, 0, 0],
        "created_at": created_at,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(training_rows.insert(), row)


async def test_a_record_comes_back_as_it_was(engine: AsyncEngine) -> None:
    record = make_record("r-1")

    await insert(engine, record)

    assert await get_request(engine, "r-1") == record


async def test_a_record_without_consent_and_without_answer_comes_back_as_it_was(engine: AsyncEngine) -> None:
    record = make_record(
        "r-1", key_id=None, messages=None, answer=None, reasoning=None, finish_reason=None, error="tier 3 failed"
    )

    await insert(engine, record)

    assert await get_request(engine, "r-1") == record


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=st.text(), content=st.text(), number=st.integers(0, 2**31 - 1), cost=st.floats(0, 1e6))
async def test_whatever_text_was_written_comes_back_except_nul_in_answers(
    engine: AsyncEngine, answer: str, content: str, number: int, cost: float
) -> None:
    record = make_record(
        f"r-{hash((answer, content, number, cost))}",
        answer=answer,
        messages=[{"role": "user", "content": content}],
        prompt_tokens=number,
        cost_usd=cost,
    )
    await insert(engine, record)

    stored = await get_request(engine, record.request_id)

    assert stored is not None
    assert stored.messages == record.messages
    assert stored.answer == answer.replace("\0", "\ufffd")
    assert (stored.prompt_tokens, stored.cost_usd) == (number, cost)


async def test_batches_of_any_length_are_stored_by_the_same_statements(sqlite_engine: AsyncEngine) -> None:
    said: set[str] = set()
    event.listen(sqlite_engine.sync_engine, "before_cursor_execute", lambda *given: said.add(given[2]))
    await insert(sqlite_engine, *(make_record(f"a-{n}") for n in range(3)))
    before = set(said)
    for length in (1, 2, 5, 70):
        await insert(sqlite_engine, *(make_record(f"b-{length}-{n}") for n in range(length)))
    assert said == before


async def test_an_embedding_comes_back_as_it_was_among_answers_and_without_a_decision(engine: AsyncEngine) -> None:
    embedding, answer = make_embedding("e-1"), make_record("r-1")

    await insert(engine, embedding)
    await insert(engine, answer, make_embedding("e-2"))

    assert await get_request(engine, "e-1") == embedding
    assert await get_request(engine, "r-1") == answer
    assert sorted(await stored_ids(engine)) == ["e-1", "e-2", "r-1"]
    async with engine.connect() as connection:
        assert list(await connection.scalars(select(routing_decisions.c.request_id))) == ["r-1"]


async def test_an_unknown_request_is_none(engine: AsyncEngine) -> None:
    assert await get_request(engine, "nobody") is None


async def test_storing_a_record_again_changes_nothing(engine: AsyncEngine) -> None:
    await insert(engine, make_record("r-1", answer="first"))

    await insert(engine, make_record("r-1", answer="second"), make_record("r-2"))

    stored = await get_request(engine, "r-1")
    assert stored is not None
    assert stored.answer == "first"
    assert sorted(await stored_ids(engine)) == ["r-1", "r-2"]


async def test_erasing_a_user_deletes_all_rows_of_that_user_and_no_others(engine: AsyncEngine) -> None:
    for key in ("ada", "bob"):
        await insert(engine, make_record(f"{key}-1", key_id=key, created_at=1.0))
        await insert_verification(engine, f"{key}-1", key_id=key, created_at=1.0)
        await insert_training_row(engine, f"{key}-1", key_id=key, created_at=1.0)

    erased = await delete_key_data(engine, "ada", now=2.0)

    assert erased == ErasedRows(requests=1, verifications=1, training_rows=1, files=0, batches=0, stored_responses=0)
    assert await stored_ids(engine) == ["bob-1"]
    async with engine.connect() as connection:
        for table in (routing_decisions, verifications, training_rows):
            assert list((await connection.execute(select(table.c.request_id))).scalars()) == ["bob-1"]


async def test_erasing_a_user_twice_moves_the_date(engine: AsyncEngine) -> None:
    await delete_key_data(engine, "ada", now=2.0)

    await delete_key_data(engine, "ada", now=5.0)

    async with engine.connect() as connection:
        assert (await connection.execute(select(erasures))).all() == [("ada", 5.0)]


async def test_records_that_arrive_after_their_user_was_erased_are_dropped(engine: AsyncEngine) -> None:
    await delete_key_data(engine, "ada", now=2.0)

    await insert(
        engine,
        make_record("late", key_id="ada", created_at=2.0),
        make_record("new", key_id="ada", created_at=2.5),
        make_record("anonymous", key_id=None, created_at=1.0),
    )

    assert await stored_ids(engine) == ["new", "anonymous"]


async def test_an_erased_text_is_nowhere_in_the_sqlite_files(sqlite_engine: AsyncEngine, tmp_path: Path) -> None:
    secret = "the quick brown secret"
    await insert(sqlite_engine, make_record("r-1", key_id="ada", created_at=1.0, answer=secret))
    await insert_verification(sqlite_engine, "r-1", key_id="ada", created_at=1.0, answer=secret)

    def files_with_secret() -> list[str]:
        return [path.name for path in tmp_path.iterdir() if secret.encode() in path.read_bytes()]

    assert files_with_secret() != []
    await delete_key_data(sqlite_engine, "ada", now=2.0)

    assert files_with_secret() == []


async def test_the_error_of_a_statement_shows_none_of_its_values(engine: AsyncEngine) -> None:
    await insert_verification(engine, "twice", key_id="k", created_at=1.0)
    async with engine.begin() as connection:
        row = dict((await connection.execute(select(verifications))).mappings().one())
    del row["facet"]  # the database computes it
    with pytest.raises(IntegrityError) as refused:
        async with engine.begin() as connection:
            await connection.execute(verifications.insert(), row | {"verifier_answer": "a user's text"})
    assert "INSERT INTO verifications" in str(refused.value)
    assert "a user's text" not in str(refused.value)


async def test_an_audit_event_is_written_down_with_its_details(engine: AsyncEngine) -> None:
    await record_audit(
        engine, at=1.5, actor="job", action="promote", subject="v2", reason="better", details={"gain": 0.5}
    )

    async with engine.connect() as connection:
        row = (await connection.execute(select(audit_events))).one()
    assert (row.created_at, row.actor, row.action, row.subject) == (1.5, "job", "promote", "v2")
    assert (row.reason, row.details) == ("better", {"gain": 0.5})
