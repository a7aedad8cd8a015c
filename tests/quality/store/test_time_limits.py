"""Calls of a SQLite connection are few, and fail at their limit, whatever its thread waits for."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from quality.store import drivers
from quality.store.database import open_database
from quality.store.drivers import LimitedSqlite, sqlite_connection
from tests.polling import eventually


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "STATEMENT_SECONDS", 0.05)
    monkeypatch.setattr(drivers, "COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(drivers, "WATCH_SECONDS", 0.01)


async def _stuck(connection: LimitedSqlite) -> threading.Event:
    """Make the connection's thread wait until the returned event is set."""
    released, waits = threading.Event(), threading.Event()

    def wait() -> int:
        waits.set()
        return int(released.wait())

    await connection.create_function("wait", 0, wait)
    call = asyncio.ensure_future(connection.execute("SELECT wait()"))
    await asyncio.to_thread(waits.wait)
    with pytest.raises(TimeoutError):
        await call
    return released


@pytest.mark.usefixtures("short_limits")
async def test_a_statement_and_a_commit_behind_a_stuck_thread_fail_and_later_calls_work(tmp_path: Path) -> None:
    connection = await sqlite_connection(str(tmp_path / "a.sqlite3"))
    released = await _stuck(connection)
    with pytest.raises(TimeoutError):
        await connection.execute("SELECT 1")
    with pytest.raises(TimeoutError):
        await connection.commit()

    released.set()
    await eventually(lambda: connection._watch is None)
    cursor = await connection.execute("SELECT 2")
    assert await cursor.fetchone() == (2,)
    await connection.close()


async def test_the_timer_ends_with_the_calls_that_it_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "WATCH_SECONDS", 0.01)
    connection = await sqlite_connection(str(tmp_path / "a.sqlite3"))
    await connection.execute("SELECT 1")
    assert connection._watch is not None
    await eventually(lambda: connection._watch is None)
    await connection.close()


async def test_a_statement_with_all_its_rows_is_one_call_of_the_thread_and_a_commit_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'a.sqlite3'}")
    calls: list[object] = []
    answered = LimitedSqlite._answered

    async def counted(self: LimitedSqlite, seconds: float, call: Callable[[], Any]) -> Any:
        calls.append(call)
        return await answered(self, seconds, call)

    rows = [{"n": n} for n in range(200)]
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE numbers (n INTEGER PRIMARY KEY)"))
        monkeypatch.setattr(LimitedSqlite, "_answered", counted)
        stored = await connection.execute(text("INSERT INTO numbers VALUES (:n)"), rows)
        found = (await connection.execute(text("SELECT n FROM numbers ORDER BY n"))).all()
        assert len(calls) == 2
    assert len(calls) == 3
    async with engine.connect() as connection:
        await connection.execute(text("INSERT INTO numbers VALUES (-1)"))
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT min(n) FROM numbers")) == 0
    await engine.dispose()
    assert (stored.rowcount, [n for (n,) in found]) == (200, list(range(200)))
