"""Commands on a database of another version or one that does not answer: one sentence, status 1, nothing changed."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from quality.store.database import head_revision
from tests.gateway.processes.test_refused_starts import refusal
from tests.ports import held_port
from tests.support.served import served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

# Of an earlier version, which answered three requests of a team's key within a budget; its database as an SQL dump.
_OLDEST = "0041"
_STORED = Path(__file__).parents[2] / "stored_data" / f"schema_{_OLDEST}"
_KEY = "sk-aio-BuQYHEsnOYiPO19vPK1gxFBEODSNET019A6U1LR1tJM"
_REQUESTS = [
    "chatcmpl-01a21d6d1744efb80ffcada66bdf8b1f",
    "chatcmpl-01a21d6d1778e6fec383475b9679a213",
    "chatcmpl-01a21d6d179d61eb3ff3c6921693d933",
]
_COMMANDS = [
    ["report"],
    ["route", "Hello"],
    ["route", "--replay", "chatcmpl-1"],
    ["keys", "list"],
    ["teams", "list"],
    ["admin", "list"],
    ["keys", "create", "app"],
]

Settings = dict[str, str]


@pytest.fixture
def settings(upstream: Upstream, tmp_path: Path) -> Settings:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    return {"AIO_DATA_DIR": str(tmp_path / "data"), "AIO_CATALOG": str(catalog)}


@pytest.fixture
def database(settings: Settings) -> Path:
    """The database in a copy of the older data folder."""
    folder = Path(settings["AIO_DATA_DIR"])
    folder.mkdir(mode=0o700)
    (folder / "aio.sqlite3").touch(mode=0o600)
    with closing(sqlite3.connect(folder / "aio.sqlite3")) as opened:
        opened.execute("PRAGMA journal_mode=WAL")
        opened.executescript((_STORED / "aio.sql").read_text())
    return folder / "aio.sqlite3"


@pytest.fixture
def older(database: Path) -> Path:
    """The same, which says that it has a revision that this version does not start from."""
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("UPDATE alembic_version SET version_num = '0040'")
    return database


@pytest.fixture
def newer(database: Path) -> Path:
    """The same, which says that it has a revision of a later version."""
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("UPDATE alembic_version SET version_num = '9999'")
    return database


def command(*words: str, settings: Settings) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
    program = [sys.executable, "-c", "from gateway.cli import main; main()"]
    return subprocess.run([*program, *words], env=inherited | settings, capture_output=True, text=True, timeout=200)


def schema_of(database: Path) -> tuple[str, list[str]]:
    with closing(sqlite3.connect(database)) as opened:
        revision = opened.execute("SELECT version_num FROM alembic_version").fetchone()[0]
        return revision, [row[0] for row in opened.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")]


@pytest.mark.parametrize("words", [*_COMMANDS, ["migrate"]], ids=" ".join)
def test_an_older_database_is_named_with_the_commit_that_migrates_it_and_kept(
    words: list[str], settings: Settings, older: Path
) -> None:
    before = schema_of(older)

    said = refusal(*words, settings=settings)

    assert f"has schema 0040, and this version of AIO migrates schemas from {_OLDEST} on" in said
    assert "run `aio migrate` of commit " in said
    assert schema_of(older) == before


def test_a_start_keeps_what_the_database_of_an_earlier_version_has(
    settings: Settings, database: Path, tmp_path: Path
) -> None:
    words = ("--catalog", settings["AIO_CATALOG"])
    kept = {"AIO_RETAIN_DAYS": "null"}
    with served(tmp_path / "data", tmp_path / "cache", *words, environment=kept) as aio:
        assert schema_of(database)[0] == head_revision()
        rows = aio.admin.get("/admin/api/requests").json()["rows"]
        assert sorted(row["request_id"] for row in rows) == _REQUESTS
        headers = {"authorization": f"Bearer {_KEY}"}
        assert httpx.get(f"{aio.url}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{aio.url}/v1/models").status_code == 401
        (budget,) = aio.admin.get("/admin/api/budgets").json()["rows"]
        assert (budget["amount_usd"], budget["period"]) == (25.0, "month")

    listed = command("keys", "list", settings=settings)
    assert (listed.returncode, "app" in listed.stdout) == (0, True)


@pytest.mark.parametrize("words", [["migrate"], ["keys", "list"], ["report"]], ids=" ".join)
def test_a_newer_database_is_named_and_kept(words: list[str], settings: Settings, newer: Path) -> None:
    before = schema_of(newer)

    said = refusal(*words, settings=settings)

    assert f"is newer than this version of AIO (schema 9999, known up to {head_revision()})" in said
    assert schema_of(newer) == before


@pytest.mark.usefixtures("newer")
def test_a_start_on_a_newer_database_ends_with_one_sentence(settings: Settings) -> None:
    ended = command("serve", "--port", "0", settings=settings)

    # The lines before are the server's log.
    last = ended.stderr.splitlines()[-1]
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
    assert "is newer than this version of AIO (schema 9999, " in last


@pytest.mark.parametrize("words", [*_COMMANDS, ["migrate"]], ids=" ".join)
def test_a_database_that_does_not_answer_is_named_in_one_sentence(words: list[str], settings: Settings) -> None:
    with closing(held_port()) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        url = f"postgresql://aio:secret@{address}/aio"

        said = refusal(*words, settings=settings | {"AIO_DATABASE_URL": url})

    assert said.startswith(f"the database postgresql+asyncpg://aio:***@{address}/aio cannot be used (")
    assert said.endswith("); see AIO_DATABASE_URL")


@pytest.mark.parametrize("words", [["keys", "list"], ["keys", "create", "app"], ["report"], ["migrate"]])
@pytest.mark.parametrize("damage", ["pages", "head", "text"])
def test_a_damaged_database_is_named_in_one_sentence_and_kept(
    words: list[str], damage: str, settings: Settings, database: Path
) -> None:
    assert command("migrate", settings=settings).returncode == 0
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with database.open("r+b") as file:
        if damage == "pages":
            file.seek(4096)
            file.write(b"\xa5" * (database.stat().st_size - 4096))
        else:
            file.write(bytes(100) if damage == "head" else b"no database " * 1000)
    before = database.read_bytes()

    said = refusal(*words, settings=settings)

    assert said.startswith(f"the database sqlite+aiosqlite:///{database} cannot be used: it is damaged (")
    assert said.endswith("): stop the server and restore a backup")
    assert database.read_bytes() == before
