"""Calls of a SQLite connection fail at their limit, whatever its thread waits for."""

import asyncio
import threading
from pathlib import Path

import pytest

from quality.store import drivers
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
