"""An outage of PostgreSQL is two lines of the log; what others say of it is left out, and nothing else."""

import io
import logging
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from gateway.base.logs import configure_logging
from gateway.base.stores.database import DatabaseOutages
from gateway.telemetry.error_reports import ErrorReport, ErrorReports
from quality.store.database import open_database
from tests.ports import held_port

log = logging.getLogger("tests.outages")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the process's log says."""
    root, said = logging.getLogger(), io.StringIO()
    before, level = list(root.handlers), root.level
    monkeypatch.setattr("sys.stderr", said)
    configure_logging("info")
    yield said
    root.handlers[:] = before
    root.setLevel(level)


async def asked(engine: Any) -> None:
    """As a part that needs the database, and logs why it cannot go on, with a stack and without, and later."""
    try:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
    except OSError as error:
        log.exception("a part could not work")
        log.warning("keys cannot be read: %s", type(error).__name__)
        failure = error
    log.error("it starts again", exc_info=failure)


async def test_an_outage_is_one_warning_and_the_parts_that_fail_say_nothing(lines: io.StringIO) -> None:
    with held_port() as nothing_listens:
        engine = open_database(f"postgresql://aio:secret@127.0.0.1:{nothing_listens.getsockname()[1]}/aio")
        DatabaseOutages(engine)
        reports: list[ErrorReport] = []
        logging.getLogger().handlers.insert(0, ErrorReports("gateway", reports.append))
        for _ in range(3):
            await asked(engine)
        await engine.dispose()
    (line,) = lines.getvalue().splitlines()
    assert " WARNING " in line
    assert "postgresql+asyncpg://aio:***@127.0.0.1:" in line
    assert "is away (" in line
    assert reports == []


async def test_another_error_is_said_also_while_the_database_is_away(lines: io.StringIO) -> None:
    with held_port() as nothing_listens:
        engine = open_database(f"postgresql://aio@127.0.0.1:{nothing_listens.getsockname()[1]}/aio")
        DatabaseOutages(engine)
        await asked(engine)
        await engine.dispose()
    try:
        raise ConnectionRefusedError("a tier's server")
    except OSError:
        log.warning("a tier is down")
    log.warning("something else")
    assert [line.rpartition("tests.outages ")[2] for line in lines.getvalue().splitlines()[1:]] == [
        "a tier is down",
        "something else",
    ]


async def test_the_lines_that_an_outage_leaves_out_are_there_at_level_debug(lines: io.StringIO) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    with held_port() as nothing_listens:
        engine = open_database(f"postgresql://aio@127.0.0.1:{nothing_listens.getsockname()[1]}/aio")
        DatabaseOutages(engine)
        await asked(engine)
        await engine.dispose()
    assert "keys cannot be read: ConnectionRefusedError" in lines.getvalue()


async def test_a_second_outage_is_said_again(lines: io.StringIO, postgres_server: Any, postgres_url: str) -> None:
    engine = open_database(postgres_url)
    outages = DatabaseOutages(engine)
    for _ in range(2):
        assert not outages.is_away
        outages.note(ConnectionRefusedError("refused"))
        assert outages.is_away
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
    await engine.dispose()
    said = [" is away (refused)" in line for line in lines.getvalue().splitlines()]
    assert said == [True, False, True, False]
    assert "the database is back after " in lines.getvalue()


async def test_a_locked_file_is_one_warning_and_another_failure_of_it_is_said(
    lines: io.StringIO, sqlite_url: str
) -> None:
    engine = open_database(sqlite_url)
    DatabaseOutages(engine)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None) as other:
        other.execute("CREATE TABLE t (a)")
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            try:
                async with engine.connect() as connection:
                    await connection.execute(text("PRAGMA busy_timeout = 0"))
                    await connection.execute(text("INSERT INTO t VALUES (1)"))
            except OperationalError:
                log.exception("a part could not work")
        other.execute("ROLLBACK")
    other.close()
    try:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT missing FROM t"))
    except OperationalError as error:
        log.warning("a part could not work: %s", error.orig)
    await engine.dispose()
    locked, failed = lines.getvalue().splitlines()
    assert " WARNING " in locked
    assert "another process has been writing to the database sqlite" in locked
    assert "no such column" in failed
