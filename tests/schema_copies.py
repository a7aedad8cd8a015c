"""The newest schema, made by the revisions once per test process and copied into every other database that is empty.

A database of its own for each test would run all revisions each time, which takes longer than most of these tests.
Tests of the revisions themselves (tests/migrations) and processes that tests start run them.
"""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import asyncpg
from sqlalchemy.engine import URL

from quality.store import database

run_revisions = database._run_alembic


class SchemaCopies:
    """Runs in place of `run_revisions`. `folder`: where the copied schema is kept; `pg_dump`: PostgreSQL's program, or
    None to run the revisions there."""

    def __init__(self, folder: Path, pg_dump: Path | None) -> None:
        self._file, self._pg_dump = folder / "store.db", pg_dump
        self._statements = ""

    async def run(self, url: URL, way: Literal["upgrade", "downgrade"], revision: str) -> None:
        """Copy the schema into an empty database; what holds tables already is migrated."""
        copied = False
        if (way, revision) == ("upgrade", "head"):
            if url.get_backend_name() == "sqlite":
                copied = await self._copy_file(Path(str(url.database)))
            elif self._pg_dump is not None:
                copied = await self._copy_statements(url, self._pg_dump)
        if not copied:
            await run_revisions(url, way, revision)

    async def _copy_file(self, path: Path) -> bool:
        if not self._file.exists():
            await run_revisions(database._parse(f"sqlite:///{self._file}"), "upgrade", "head")
        # All connections are closed: the file is whole without its write-ahead log.
        assert not self._file.with_name("store.db-wal").exists()
        async with database._sqlite_lock_file(path):
            return _copied_once(self._file, path)

    async def _copy_statements(self, url: URL, pg_dump: Path) -> bool:
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        try:
            connection = await asyncpg.connect(plain)
        except (asyncpg.PostgresError, OSError):
            return False  # a server that is down is for the caller to notice
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", database._MIGRATION_LOCK)
                if await connection.fetchval("SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'public')"):
                    return False
                if self._statements:
                    await connection.execute(self._statements)
                    return True
        finally:
            await connection.close()
        await run_revisions(url, "upgrade", "head")
        self._statements = await _dumped(pg_dump, plain)
        return True


def _copied_once(source: Path, path: Path) -> bool:
    """Copy unless there is a file already."""
    if path.exists():
        return False
    shutil.copyfile(source, path)
    return True


async def _dumped(pg_dump: Path, url: str) -> str:
    """The statements that make a database's tables and their rows."""
    options = ("--schema=public", "--inserts", "--no-owner", "--no-privileges", "--no-comments")
    process = await asyncio.create_subprocess_exec(pg_dump, *options, url, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, f"{pg_dump} failed with {process.returncode}"
    # The schema itself is there; lines with a backslash are for psql.
    return "\n".join(line for line in output.decode().splitlines() if not line.startswith(("\\", "CREATE SCHEMA ")))


@contextmanager
def schema_copied(folder: Path, pg_dump: Path | None) -> Iterator[None]:
    """Let `migrate` copy the schema while the block runs."""
    database._run_alembic = SchemaCopies(folder, pg_dump).run
    try:
        yield
    finally:
        database._run_alembic = run_revisions
