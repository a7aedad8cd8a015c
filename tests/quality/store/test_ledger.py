"""A recorded request is found at once and stored once, despite failures of disk, database or process."""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.requests import requests
from quality.ledger.ledger import Ledger, LedgerClosedError
from quality.records.record import Recorded
from quality.store.database import migrate, open_database
from quality.store.queries import delete_key_data, get_request, insert_records
from tests.polling import eventually
from tests.quality.store.records import make_embedding, make_record
from tests.support.database import migrated

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def running(journal_dir: Path, engine: AsyncEngine, **options: Any) -> AsyncIterator[Ledger]:
    ledger = Ledger(journal_dir, engine, max_retry_seconds=0.05, **options)
    await ledger.start()
    yield ledger
    await ledger.close(store_seconds=0)


def segments(journal_dir: Path) -> list[Path]:
    # os.walk passes over folders that vanish while it looks, as emptied journals do.
    return [
        Path(folder, name) for folder, _, names in os.walk(journal_dir) for name in names if name.endswith(".journal")
    ]


async def stored_ids(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list((await connection.execute(select(requests.c.request_id))).scalars())


def away(path: Path) -> AsyncEngine:
    """An engine whose database has no tables yet, which behaves like an unavailable database."""
    return open_database(f"sqlite:///{path}")


async def test_a_record_is_found_as_soon_as_it_is_recorded_even_without_a_database(tmp_path: Path) -> None:
    record = make_record("r-1")
    async with running(tmp_path / "journal", away(tmp_path / "away.db")) as ledger:
        ledger.append(record)
        await ledger.recorded("r-1")

        assert await ledger.find("r-1") == record


async def test_an_embedding_is_journaled_found_and_stored_like_an_answer(tmp_path: Path, engine: AsyncEngine) -> None:
    embedding, answer = make_embedding("e-1"), make_record("r-1")
    async with running(tmp_path / "journal", away(tmp_path / "away.db")) as ledger:
        ledger.append(embedding)
        ledger.append(answer)
        await ledger.recorded("r-1")
        assert await ledger.find("e-1") == embedding
        assert await ledger.find("r-1") == answer
    async with running(tmp_path / "journal", engine) as ledger:
        assert await ledger.find("e-1") == embedding
        await ledger.flush()
    assert await get_request(engine, "e-1") == embedding


async def test_a_record_is_not_found_before_it_is_durable(
    tmp_path: Path, sqlite_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_end = threading.Event(), threading.Event()

    def slow_sync(_: int) -> None:
        entered.set()
        assert may_end.wait(30)

    monkeypatch.setattr("quality.ledger.journal.os.fdatasync", slow_sync)
    async with running(tmp_path, sqlite_engine) as ledger:
        ledger.append(make_record("r-1"))
        assert await asyncio.to_thread(entered.wait, 30)

        before = await ledger.find("r-1")
        may_end.set()
        await ledger.recorded("r-1")

        assert before is None
        assert await ledger.find("r-1") == make_record("r-1")


async def test_flush_brings_everything_to_the_database_and_empties_the_journal(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    records = [make_record(f"r-{n}", created_at=float(n)) for n in range(300)]
    async with running(tmp_path, engine) as ledger:
        for record in records:
            ledger.append(record)
        await ledger.flush()

        assert segments(tmp_path) == []
        assert [await get_request(engine, record.request_id) for record in records] == records
        assert [await ledger.find(record.request_id) for record in records[:3]] == records[:3]
        status = ledger.status()
        assert (status.appended, status.journaled, status.stored, status.waiting) == (300, 300, 300, 0)
        assert status.healthy


async def test_an_id_that_was_never_recorded_is_not_found(tmp_path: Path, engine: AsyncEngine) -> None:
    async with running(tmp_path, engine) as ledger:
        assert await ledger.find("nobody") is None


async def test_unstored_records_are_stored_after_a_restart(tmp_path: Path, engine: AsyncEngine) -> None:
    record = make_record("r-1")
    async with running(tmp_path / "journal", away(tmp_path / "away.db")) as ledger:
        ledger.append(record)

    async with running(tmp_path / "journal", engine) as ledger:
        assert await ledger.find("r-1") == record
        await ledger.flush()

        assert await get_request(engine, "r-1") == record
        assert ledger.status().adopted == 1
        assert segments(tmp_path) == []


async def test_replaying_what_is_already_stored_stores_nothing_twice(tmp_path: Path, engine: AsyncEngine) -> None:
    journal_dir = tmp_path / "journal"
    async with running(journal_dir, away(tmp_path / "away.db")) as ledger:
        for n in range(5):
            ledger.append(make_record(f"r-{n}"))
    shutil.copytree(journal_dir, tmp_path / "copy")
    async with running(journal_dir, engine) as ledger:
        await ledger.flush()

    async with running(tmp_path / "copy", engine) as ledger:
        await ledger.flush()

        assert ledger.status().adopted == 5
        assert sorted(await stored_ids(engine)) == [f"r-{n}" for n in range(5)]


async def test_a_torn_tail_costs_only_the_record_that_was_never_acknowledged(
    tmp_path: Path, sqlite_engine: AsyncEngine
) -> None:
    journal_dir = tmp_path / "journal"
    async with running(journal_dir, away(tmp_path / "away.db")) as ledger:
        for n in range(3):
            ledger.append(make_record(f"r-{n}"))
    [segment] = segments(journal_dir)
    os.truncate(segment, segment.stat().st_size - 1)

    async with running(journal_dir, sqlite_engine) as ledger:
        await ledger.flush()

        assert sorted(await stored_ids(sqlite_engine)) == ["r-0", "r-1"]


async def test_a_record_that_the_disk_changed_is_counted_and_said_and_costs_no_other(
    tmp_path: Path, sqlite_engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    journal_dir = tmp_path / "journal"
    async with running(journal_dir, away(tmp_path / "away.db")) as ledger:
        for n in range(3):
            ledger.append(make_record(f"r-{n}"))
    [segment] = segments(journal_dir)
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)

    async with running(journal_dir, sqlite_engine) as ledger:
        await ledger.flush()

        assert ledger.status().lost == 1
        assert f"1 records of {segment} are lost" in caplog.text
        assert sorted(await stored_ids(sqlite_engine)) == ["r-0", "r-2"]


async def test_a_request_that_was_under_way_when_its_process_died_is_recorded_as_noted_at_its_start(
    tmp_path: Path, sqlite_engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    journal_dir = tmp_path / "journal"
    begun = make_record("cut", status="aborted", cost_usd=0.5)
    async with running(journal_dir, away(tmp_path / "away.db")) as ledger:
        ledger.begin(make_record("whole", status="aborted", cost_usd=0.5))
        ledger.begin(begun)
        ledger.append(make_record("whole"))

    async with running(journal_dir, sqlite_engine) as ledger:
        assert ledger.find_waiting("cut") == begun
        await ledger.flush()

        assert (ledger.status().adopted, ledger.status().interrupted) == (2, 1)
        assert "1 requests were under way" in caplog.text
        assert await ledger.find("cut") == begun
        assert await ledger.find("whole") == make_record("whole")
        assert segments(journal_dir) == []


async def test_a_request_that_has_started_is_neither_found_nor_stored_before_it_ends(
    tmp_path: Path, sqlite_engine: AsyncEngine
) -> None:
    async with running(tmp_path / "journal", sqlite_engine) as ledger:
        ledger.begin(make_record("r-1", status="aborted"))
        ledger.append(make_record("r-2"))
        await ledger.flush()

        assert await ledger.find("r-1") is None
        assert await stored_ids(sqlite_engine) == ["r-2"]
        assert ledger.status().appended == 1

        ledger.append(make_record("r-1"))
        await ledger.flush()
        assert await ledger.find("r-1") == make_record("r-1")


async def test_what_a_request_that_has_started_needs_is_kept_until_it_ends_and_then_goes(
    tmp_path: Path, sqlite_engine: AsyncEngine
) -> None:
    journal_dir = tmp_path / "journal"
    async with running(journal_dir, sqlite_engine) as ledger:
        ledger.begin(make_record("r-1"))
        ledger.append(make_record("r-2"))
        await ledger.flush()
        assert len(segments(journal_dir)) == 1

        ledger.append(make_record("r-1"))
        await ledger.flush()

        assert segments(journal_dir) == []


async def test_the_folder_of_a_dead_process_goes_once_its_records_are_stored(
    tmp_path: Path, sqlite_engine: AsyncEngine
) -> None:
    journal_dir = tmp_path / "journal"
    async with running(journal_dir, away(tmp_path / "away.db")) as ledger:
        ledger.append(make_record("r-1"))
    [segment] = segments(journal_dir)

    async with running(journal_dir, sqlite_engine) as ledger:
        await ledger.flush()
        await eventually(lambda: not segment.parent.exists())

    assert segments(journal_dir) == []


async def test_a_segment_without_a_single_whole_record_is_deleted(tmp_path: Path, sqlite_engine: AsyncEngine) -> None:
    journal_dir = tmp_path / "journal"
    async with running(journal_dir, away(tmp_path / "away.db")) as ledger:
        ledger.append(make_record("r-1"))
    [segment] = segments(journal_dir)
    os.truncate(segment, segment.stat().st_size - 1)

    async with running(journal_dir, sqlite_engine) as ledger:
        await ledger.flush()

        assert segments(journal_dir) == []


async def test_a_clean_close_leaves_no_files(tmp_path: Path, engine: AsyncEngine) -> None:
    journal_dir = tmp_path / "journal"
    ledger = Ledger(journal_dir, engine)
    await ledger.start()
    ledger.append(make_record("r-1"))

    await ledger.close()

    assert os.listdir(journal_dir) == ["lock"]
    assert await stored_ids(engine) == ["r-1"]


async def test_an_outage_of_postgresql_costs_no_record_and_no_request(
    tmp_path: Path, postgres_server: Any, postgres_url: str
) -> None:
    async with migrated(postgres_url) as engine, running(tmp_path, engine) as ledger:
        ledger.append(make_record("before"))
        await ledger.flush()
        await asyncio.to_thread(postgres_server.stop)
        try:
            ledger.append(make_record("during"))
            await ledger.recorded("during")
            await eventually(lambda: ledger.status().store_error is not None)

            status = ledger.status()
            assert await ledger.find("during") == make_record("during")
            assert status.healthy
            assert status.waiting == 1
        finally:
            await asyncio.to_thread(postgres_server.start)
        ledger.append(make_record("after"))
        await ledger.flush()

        assert sorted(await stored_ids(engine)) == ["after", "before", "during"]
        assert ledger.status().store_error is None


async def test_storing_begins_when_the_missing_schema_appears(tmp_path: Path, database_url: str) -> None:
    engine = open_database(database_url)
    async with running(tmp_path / "journal", engine) as ledger:
        ledger.append(make_record("r-1"))
        await eventually(lambda: ledger.status().store_error is not None)

        await migrate(database_url)
        await ledger.flush()

        assert await stored_ids(engine) == ["r-1"]
        assert ledger.status().rejected == 0
    await engine.dispose()


async def test_a_record_the_database_rejects_stops_no_other_and_stays_in_the_journal(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    unacceptable = make_record("bad", completion_tokens=2**63)
    async with running(tmp_path, engine) as ledger:
        ledger.append(make_record("good-1"))
        ledger.append(unacceptable)
        ledger.append(make_record("good-2"))
        await ledger.flush()

        assert sorted(await stored_ids(engine)) == ["good-1", "good-2"]
        assert ledger.status().rejected == 1
        assert await ledger.find("bad") == unacceptable

    async with running(tmp_path, engine) as ledger:
        assert await ledger.find("bad") == unacceptable


async def test_a_journal_of_another_version_is_kept_and_counted(tmp_path: Path, sqlite_engine: AsyncEngine) -> None:
    async with running(tmp_path, sqlite_engine) as ledger:
        ledger._journal.append("r-0", b"\x80")
        ledger.append(make_record("r-1"))
    async with running(tmp_path, sqlite_engine) as ledger:
        await ledger.flush()

        assert ledger.status().rejected == 1
        assert await stored_ids(sqlite_engine) == ["r-1"]
        assert len(segments(tmp_path)) == 1


async def test_a_stalled_disk_refuses_loudly_and_never_blocks(
    tmp_path: Path, sqlite_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr("quality.ledger.journal.os.fdatasync", lambda _: may_end.wait(30))
    async with running(tmp_path, sqlite_engine, max_pending_bytes=10_000) as ledger:
        for n in range(100):
            ledger.append(make_record(f"r-{n}"))

        status = ledger.status()
        assert not status.healthy
        assert status.refused == 100 - status.appended > 0
        assert f"request r-{status.appended} is not recorded" in caplog.text
        may_end.set()
        await ledger.flush()
        assert len(await stored_ids(sqlite_engine)) == status.appended


async def test_during_a_stall_durability_is_suspended_and_the_room_of_answers_under_way_is_kept_from_new_requests(
    tmp_path: Path, sqlite_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quality.ledger.ledger")
    may_end = threading.Event()
    monkeypatch.setattr("quality.ledger.journal.os.fdatasync", lambda _: may_end.wait(30))
    async with running(tmp_path, sqlite_engine, max_pending_bytes=20_000) as ledger:
        ledger.append(make_record("r-0"))
        monkeypatch.setattr("quality.ledger.ledger._PATIENCE_S", 3600.0)
        assert (ledger.status().suspended, ledger.is_full()) == (None, False)
        assert ledger.status().journal_lag_seconds > 0
        monkeypatch.setattr("quality.ledger.ledger._PATIENCE_S", 0.0)
        assert str(ledger.status().suspended).startswith("the disk does not answer, durability is suspended: ")

        appended = 1
        while not ledger.is_full() and ledger.status().refused == 0:
            ledger.append(make_record(f"r-{appended}"))
            appended += 1
        assert 10_000 < ledger.status().pending_bytes < 20_000
        assert str(ledger.status().suspended).endswith("; new requests are refused")
        ledger.append(make_record("under way"))
        assert ledger.status().refused == 0

        may_end.set()
        await ledger.recorded("under way")
        assert (ledger.status().suspended, ledger.is_full()) == (None, False)
        await ledger.flush()
        assert len(await stored_ids(sqlite_engine)) == appended + 1
    said = [record.getMessage() for record in caplog.records if record.name == "quality.ledger.ledger"]
    assert [line.partition(f"{tmp_path} ")[2] for line in said] == [
        "does not answer: records wait in memory",
        "answers again: records are durable",
    ]


async def test_many_ledgers_share_one_folder_and_one_database_without_loss(tmp_path: Path, engine: AsyncEngine) -> None:
    async def serve(name: str) -> None:
        async with running(tmp_path, engine, segment_bytes=5_000, commit_interval=0.001) as ledger:
            for n in range(100):
                ledger.append(make_record(f"{name}-{n}"))
                if n % 7 == 0:
                    await ledger.recorded(f"{name}-{n}")
            await ledger.flush()

    await asyncio.gather(*(serve(name) for name in "abc"))

    assert sorted(await stored_ids(engine)) == sorted(f"{name}-{n}" for name in "abc" for n in range(100))


async def test_a_database_that_is_far_behind_takes_more_at_a_time_and_few_again_at_the_end(
    tmp_path: Path, sqlite_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    async def counted(connection: AsyncConnection, records: Sequence[Recorded]) -> None:
        sizes.append(len(records))
        await insert_records(connection, records)

    async with running(tmp_path / "journal", away(tmp_path / "away.db")) as ledger:
        for n in range(1500):
            ledger.append(make_record(f"r-{n}"))
        await ledger.recorded("r-1499")
    monkeypatch.setattr("quality.ledger.ledger.insert_records", counted)
    async with running(tmp_path / "journal", sqlite_engine, batch_records=10) as ledger:
        await ledger.flush()

    assert sum(sizes) == len(await stored_ids(sqlite_engine)) == 1500
    assert sizes[0] == 80  # Eight batches in one, however far it is behind.
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 10


async def test_records_of_an_erased_user_still_in_a_journal_never_reach_the_database(
    tmp_path: Path, engine: AsyncEngine
) -> None:
    async with running(tmp_path / "journal", away(tmp_path / "away.db")) as ledger:
        ledger.append(make_record("hers", key_id="ada", created_at=100.0))
        ledger.append(make_record("hers, later", key_id="ada", created_at=300.0))
        ledger.append(make_record("his", key_id="bob", created_at=100.0))
    await delete_key_data(engine, "ada", now=200.0)

    async with running(tmp_path / "journal", engine) as ledger:
        await ledger.flush()

        assert sorted(await stored_ids(engine)) == ["hers, later", "his"]
        assert await ledger.find("hers") is None


async def test_a_ledger_that_does_not_run_says_what_to_do(tmp_path: Path, sqlite_engine: AsyncEngine) -> None:
    ledger = Ledger(tmp_path, sqlite_engine)

    with pytest.raises(LedgerClosedError, match=r"await start\(\) first"):
        ledger.append(make_record())
    await ledger.start()
    await ledger.close()
    await ledger.close()
    with pytest.raises(LedgerClosedError):
        ledger.append(make_record())


def killed_writer(arguments: list[str], acknowledgements: int) -> list[str]:
    """Run the writer, kill -9 it in the middle of its work, and return the ids it had acknowledged."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.quality.store.crash_writer", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(acknowledgements)]
    process.kill()
    acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
    process.wait()
    return acknowledged


@pytest.mark.processes
@pytest.mark.parametrize("acknowledgements", [1, 60, 500])
async def test_killing_the_process_loses_nothing_that_was_recorded(
    tmp_path: Path, engine: AsyncEngine, database_url: str, acknowledgements: int
) -> None:
    acknowledged = await asyncio.to_thread(killed_writer, [str(tmp_path), database_url], acknowledgements)

    async with running(tmp_path, engine) as ledger:
        found = [await ledger.find(request_id) for request_id in acknowledged]
        await ledger.flush()

        assert found == [make_record(request_id) for request_id in acknowledged]
        ids = await stored_ids(engine)
        assert set(acknowledged) <= set(ids)
        assert len(ids) == len(set(ids))


async def test_a_process_killed_while_the_database_is_away_loses_nothing(
    tmp_path: Path, sqlite_engine: AsyncEngine
) -> None:
    missing = f"sqlite:///{tmp_path / 'never-migrated.db'}"
    journal_dir = tmp_path / "journal"
    acknowledged: list[str] = []
    for _ in range(2):
        acknowledged += await asyncio.to_thread(killed_writer, [str(journal_dir), missing], 40)

    async with running(journal_dir, sqlite_engine) as ledger:
        await ledger.flush()

        assert set(acknowledged) <= set(await stored_ids(sqlite_engine))
        assert segments(journal_dir) == []


async def test_decisions_are_stored_with_their_requests(tmp_path: Path, engine: AsyncEngine) -> None:
    async with running(tmp_path, engine) as ledger:
        ledger.append(make_record("r-1"))
        await ledger.flush()

    async with engine.connect() as connection:
        decision = (await connection.execute(text("SELECT * FROM routing_decisions"))).one()
        count = (await connection.execute(select(func.count()).select_from(requests))).scalar_one()
    assert count == 1
    assert (decision.request_id, decision.tier, decision.classifier_version) == ("r-1", 2, "v1")
