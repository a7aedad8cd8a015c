"""The schema upgrades and downgrades on both databases, and an upgraded one is that of the tables."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import func, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

import migrations
from migrations.tables.columns import metadata
from migrations.tables.requests import requests
from quality.store import database as store_database
from quality.store.database import (
    SchemaError,
    current_revision,
    downgrade,
    head_revision,
    migrate,
    open_database,
    require_schema,
)
from quality.store.drivers import DatabaseUrlError
from tests.snapshots.interfaces import schema_lines
from tests.support.database import migrated

pytestmark = pytest.mark.processes

OLDEST = "0041"
STORED = Path(__file__).parents[1] / "stored_data" / f"schema_{OLDEST}" / "aio.sql"
"""A database at the oldest revision, with three requests."""
LATER = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{after}", "{before}"


def upgrade() -> None:
    op.add_column("teams", sa.Column("later", sa.Integer, nullable=False, server_default="7"))


def downgrade() -> None:
    op.drop_column("teams", "later")
"""


async def table_names(url: str) -> set[str]:
    engine = open_database(url)
    async with engine.connect() as connection:
        names = await connection.run_sync(lambda c: inspect(c).get_table_names())
    await engine.dispose()
    return set(names) - {"alembic_version"}


async def test_a_new_database_is_at_no_revision(database_url: str) -> None:
    assert await current_revision(database_url) is None


async def test_migrating_brings_every_table_and_the_newest_revision(database_url: str) -> None:
    assert await migrate(database_url) == head_revision()

    assert await current_revision(database_url) == head_revision()
    assert await table_names(database_url) == set(metadata.tables)


async def test_the_schema_goes_up_down_and_up_again(database_url: str) -> None:
    newest = await migrate(database_url)

    await downgrade(database_url, OLDEST)

    assert await current_revision(database_url) == OLDEST
    assert await migrate(database_url) == newest
    assert await table_names(database_url) == set(metadata.tables)


@pytest.mark.parametrize("revision", ["base", "-1", "0030", "9999"])
async def test_no_downgrade_empties_a_database(sqlite_url: str, revision: str) -> None:
    await migrate(sqlite_url)
    await downgrade(sqlite_url, OLDEST)
    before = await table_names(sqlite_url)

    with pytest.raises(SchemaError, match=f"not to '{revision}'"):
        await downgrade(sqlite_url, revision)

    assert await table_names(sqlite_url) == before > {"requests"}


async def test_migrating_twice_keeps_what_is_stored(database_url: str) -> None:
    async with migrated(database_url) as engine:
        insert_audit = text(
            "INSERT INTO audit_events (created_at, actor, action, subject) VALUES (1.5, 'root', 'test', 'x')"
        )
        async with engine.begin() as connection:
            await connection.execute(insert_audit)

        await migrate(database_url)

        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT created_at FROM audit_events"))).scalars().all() == [1.5]


async def test_a_migrated_database_is_opened_without_running_revisions(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(database_url)

    def run(*_: object) -> None:
        raise AssertionError("revisions are run although the schema is the newest")

    monkeypatch.setattr(command, "upgrade", run)

    assert await migrate(database_url) == head_revision()


async def test_a_restored_sqlite_file_is_switched_to_wal_mode_again(sqlite_url: str) -> None:
    await migrate(sqlite_url)
    file = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as restored:
        assert restored.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)

    await migrate(sqlite_url)

    with closing(sqlite3.connect(file)) as found:
        assert found.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_newest_revision_is_the_head_of_the_revisions() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [head_revision()]


async def test_a_stored_database_is_kept_and_has_the_schema_that_an_empty_one_gets(tmp_path: Path) -> None:
    schemas, kept = [], []
    for name in ("stored", "empty"):
        file = tmp_path / f"{name}.sqlite3"
        if name == "stored":
            with closing(sqlite3.connect(file)) as stored:
                stored.executescript(STORED.read_text())
        url = f"sqlite:///{file}"
        await migrate(url)
        engine = open_database(url)
        async with engine.connect() as connection:
            schemas.append(await connection.run_sync(lambda opened: sorted(schema_lines(opened))))
            kept.append(await connection.scalar(select(func.count()).select_from(requests)))
        await engine.dispose()

    assert schemas[0] == schemas[1]
    assert kept == [3, 0]


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A revision after the newest, which gives teams a column; its name."""
    folder = tmp_path / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, folder)
    before = head_revision()
    after = f"{int(before) + 1:04}"
    (folder / "versions" / f"{after}_later.py").write_text(LATER.format(before=before, after=after))
    monkeypatch.setattr(store_database, "_MIGRATIONS", folder)
    return after


async def test_a_later_revision_changes_a_database_that_is_there_and_keeps_its_rows(
    database_url: str, request: pytest.FixtureRequest
) -> None:
    before = await migrate(database_url)
    engine = open_database(database_url)
    async with engine.begin() as connection:
        await _insert(connection, "teams", {"team_id": "t", "name": "kept", "created_at": 1.0})
    after = request.getfixturevalue("later")

    with pytest.raises(SchemaError, match=f"has schema {before}.* needs {after}: run `aio migrate`"):
        await require_schema(database_url)
    assert await migrate(database_url) == await current_revision(database_url) == after
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT name, later FROM teams"))).one() == ("kept", 7)

    await downgrade(database_url, before)
    async with engine.connect() as connection:
        assert "later" not in (await connection.execute(text("SELECT * FROM teams"))).one()._mapping
    assert await current_revision(database_url) == before
    await engine.dispose()


async def test_one_retraining_may_run_at_a_time(database_url: str) -> None:
    async with migrated(database_url) as engine:
        start = (
            "INSERT INTO retrain_runs (run_id, trigger, status, owner, lease_until, created_at) "
            "VALUES ('{}', 'cli', '{}', 'a', 1.0, 1.0)"
        )
        async with engine.begin() as connection:
            for run, status in (("a", "done"), ("b", "done"), ("c", "running")):
                await connection.execute(text(start.format(run, status)))

        with pytest.raises(Exception, match=r"(?i)unique"):
            async with engine.begin() as connection:
                await connection.execute(text(start.format("d", "running")))


async def test_tasks_of_one_process_may_migrate_at_once(database_url: str) -> None:
    assert await asyncio.gather(*(migrate(database_url) for _ in range(4))) == [head_revision()] * 4


@pytest.mark.processes
def test_processes_may_migrate_at_once(database_url: str) -> None:
    script = "import asyncio, sys; from quality.store.database import migrate; print(asyncio.run(migrate(sys.argv[1])))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, database_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = [process.communicate() for process in processes]

    assert outputs == [(f"{head_revision()}\n", "")] * 3


async def test_sqlite_is_not_touched_before_the_lock_file_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "store.db"
    existed: list[bool] = []
    monkeypatch.setattr("quality.store.database.fcntl.flock", lambda *_: existed.append(database.exists()))

    await migrate(f"sqlite:///{database}")

    assert existed == [False]


async def test_migration_makes_missing_folders_of_a_sqlite_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "store.db"

    await migrate(f"sqlite:///{path}")

    assert path.exists()


async def test_a_database_from_a_newer_version_is_refused_by_name(database_url: str) -> None:
    await migrate(database_url)
    engine = open_database(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await engine.dispose()

    with pytest.raises(SchemaError, match=r"9999.*install the version that wrote it"):
        await migrate(database_url)


async def test_a_database_of_before_the_oldest_revision_is_refused_with_the_commit_that_brings_it_there(
    database_url: str,
) -> None:
    await migrate(database_url)
    engine = open_database(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0040'"))
    await engine.dispose()

    for open_schema in (migrate, require_schema):
        with pytest.raises(SchemaError, match=r"schema 0040.*from 0041 on: run `aio migrate` of commit b6445069 first"):
            await open_schema(database_url)
    assert await current_revision(database_url) == "0040"


@pytest.mark.parametrize("url", ["mysql://localhost/x", "sqlite://", "sqlite:///:memory:", "no url", ""])
def test_a_url_that_cannot_be_used_is_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(DatabaseUrlError, match=r"allowed are sqlite:///.*postgresql://"):
        open_database(url)


async def test_sqlite_runs_in_wal_mode_with_full_sync_and_foreign_keys(sqlite_url: str) -> None:
    await migrate(sqlite_url)
    engine = open_database(sqlite_url)

    async with engine.connect() as connection:
        pragmas = {
            name: (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
        }
    await engine.dispose()

    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "secure_delete": 1}


async def test_a_failed_transaction_leaves_nothing_behind(database_url: str) -> None:
    async with migrated(database_url) as engine:
        insert_audit = "INSERT INTO audit_events (created_at, actor, action, subject) VALUES (1, 'a', 'b', 'c')"

        async def insert_and_fail() -> None:
            async with engine.begin() as connection:
                await connection.execute(text(insert_audit))
                raise RuntimeError

        with pytest.raises(RuntimeError):
            await insert_and_fail()
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM audit_events"))).scalar_one() == 0


async def test_text_with_a_nul_character_can_be_stored(database_url: str) -> None:
    await migrate(database_url)
    engine = open_database(database_url)
    row = {
        "request_id": "r", "created_at": 1.0, "api": "chat", "requested_model": "auto", "stream": False, "status": "ok",
        "http_status": 200, "tier": 1, "model": "m", "attempts": [], "messages": [{"content": "a\0b"}],
        "answer": "a\0b", "prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0, "reasoning_tokens": 0,
        "cost_usd": 0.0, "baseline_cost_usd": 0.0, "route_ms": 0.0, "e2e_ms": 0.0, "overhead_ms": 0.0,
    }  # fmt: skip

    async with engine.begin() as connection:
        await connection.execute(requests.insert(), row)
        stored = (await connection.execute(requests.select())).one()
    await engine.dispose()

    assert stored.messages == [{"content": "a\0b"}]
    assert stored.answer == "a\ufffdb"


async def _insert(connection: AsyncConnection, table: str, row: dict[str, object]) -> None:
    names = ", ".join(row)
    values = ", ".join(f":{name}" for name in row)
    await connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)
