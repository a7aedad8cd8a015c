"""An outage of PostgreSQL is two lines of the log; what others say of it is left out, and nothing else."""

import asyncio
import io
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from gateway.base.logs import REPORT, configure_logging
from gateway.base.stores.database import DatabaseOutages
from gateway.base.stores.retries import background
from gateway.telemetry.error_reports import ErrorReports
from quality.store.database import checkpoint, migrate, open_database
from tests.polling import eventually
from tests.ports import held_port
from tests.support.database import migrated

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


class Reported(logging.Handler):
    """Keeps what error reports add to lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, REPORT):
            self.reports.append(getattr(record, REPORT))


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
        logging.getLogger().handlers.insert(0, ErrorReports("gateway"))
        logging.getLogger().handlers.insert(1, reported := Reported())
        for _ in range(3):
            await asked(engine)
        await engine.dispose()
    (line,) = lines.getvalue().splitlines()
    assert " WARNING " in line
    assert "postgresql+asyncpg://aio:***@127.0.0.1:" in line
    assert "is away (" in line
    assert reported.reports == []


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


def overwrite_pages(engine: Any) -> None:
    """All but the first."""
    file = Path(engine.url.database)
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(b"\xa5" * (file.stat().st_size - 4096))


def change(file: Path, contents: bytes | None) -> None:
    if contents is None:
        file.rename(file.with_name("elsewhere"))
    else:
        file.write_bytes(contents)


async def failing(engine: Any, statement: str) -> None:
    try:
        async with engine.connect() as connection:
            await connection.execute(text(statement))
    except SQLAlchemyError:
        log.exception("a part could not work")


async def test_a_damaged_file_is_one_line_that_says_what_to_do_and_stays(
    lines: io.StringIO, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DatabaseOutages, "CALM_SECONDS", 0.0)
    async with migrated(sqlite_url) as engine:
        await checkpoint(engine)
    overwrite_pages(engine)
    engine = open_database(sqlite_url)
    outages = DatabaseOutages(engine)
    assert outages.problem is None
    for _ in range(3):
        await failing(engine, "SELECT * FROM api_keys")
    assert outages.problem == ("it is damaged (database disk image is malformed): stop the server and restore a backup")
    async with background(partial(outages.follow, 0.01), "faults"):
        await failing(engine, "SELECT 1")
        await asyncio.sleep(0.1)
    assert "is damaged" in str(outages.problem)
    await engine.dispose()
    (line,) = lines.getvalue().splitlines()
    assert " ERROR " in line
    assert "it is damaged (database disk image is malformed): stop the server and restore a backup. What" in line


async def test_a_schema_that_is_not_made_yet_is_no_fault(lines: io.StringIO, sqlite_url: str) -> None:
    engine = open_database(sqlite_url)
    outages = DatabaseOutages(engine)
    async with background(partial(outages.follow, 0.01), "faults"):
        await failing(engine, "SELECT * FROM teams")
        await migrate(sqlite_url)
        await eventually(lambda: outages._was_whole)
    await engine.dispose()
    assert outages.problem is None
    assert "restore a backup" not in lines.getvalue()


async def test_a_missing_table_is_said_until_it_is_back_and_the_database_can_be_written(
    lines: io.StringIO, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DatabaseOutages, "CALM_SECONDS", 0.0)
    async with migrated(sqlite_url) as engine:
        outages = DatabaseOutages(engine)
        await failing(engine, "SELECT * FROM teams")
        assert outages.problem is None
        async with engine.begin() as connection:
            await connection.execute(text("ALTER TABLE teams RENAME TO others"))
        async with background(partial(outages.follow, 0.01), "faults"):
            await eventually(lambda: outages.problem is not None)
            assert outages.problem == "a table is missing (teams): stop the server and restore a backup"
            await failing(engine, "SELECT * FROM teams")
            async with engine.begin() as connection:
                await connection.execute(text("ALTER TABLE others RENAME TO teams"))
            await eventually(lambda: outages.problem is None)
    missing, back = lines.getvalue().splitlines()
    assert "a table is missing" in missing
    assert back.endswith("works again")


@pytest.mark.parametrize(("other", "said"), [(b"", "none of SQLite"), (b"text", "none of SQLite"), (None, "is gone")])
async def test_a_file_that_lost_its_name_or_contents_is_noticed_though_no_statement_fails(
    sqlite_url: str, other: bytes | None, said: str
) -> None:
    async with migrated(sqlite_url) as engine:
        file = Path(str(engine.url.database))
        outages = DatabaseOutages(engine)
        assert outages._fault_of_file() is None
        async with background(partial(outages.follow, 0.01), "faults"):
            change(file, other)
            await eventually(lambda: outages.problem is not None)
    assert said in str(outages.problem)
    assert "stop the server and restore a backup" in str(outages.problem)


async def test_another_file_of_the_same_name_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    async with migrated(sqlite_url) as engine:
        outages = DatabaseOutages(engine)
        assert outages._fault_of_file() is None
        other = tmp_path / "other"
        with closing(sqlite3.connect(other)) as connection:
            connection.execute("CREATE TABLE t (a)")
        other.replace(str(engine.url.database))
        async with background(partial(outages.follow, 0.01), "faults"):
            await eventually(lambda: "was replaced" in str(outages.problem))


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
