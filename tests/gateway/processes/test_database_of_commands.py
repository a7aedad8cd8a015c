"""Commands on a database of another version or one that does not answer: one sentence, status 1, nothing changed."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from quality.store.database import head_revision
from tests.gateway.processes.test_refused_starts import refusal
from tests.gateway.remote_catalog import write_remote_catalog
from tests.gateway.served_process import served
from tests.ports import held_port

pytestmark = pytest.mark.processes

_EARLIER = "0028"
_COMMANDS = [
    ["report", "live"],
    ["route", "Hello"],
    ["route", "--replay", "chatcmpl-1"],
    ["keys", "list"],
    ["teams", "list"],
    ["admin", "list"],
    ["keys", "create", "app"],
]

Settings = dict[str, str]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:9/v1")
    return {"AIO_DATA_DIR": str(tmp_path / "data"), "AIO_CATALOG": str(catalog)}


@pytest.fixture
def at_revision(settings: Settings) -> Callable[[str], Path]:
    """Make a data folder whose database has the schema of a revision, or says that it has."""

    def make(revision: str) -> Path:
        for words in (("migrate",), ("migrate", "--to", _EARLIER)):
            assert command(*words, settings=settings).returncode == 0
        database = Path(settings["AIO_DATA_DIR"]) / "aio.sqlite3"
        with closing(sqlite3.connect(database)) as opened, opened:
            opened.execute("UPDATE alembic_version SET version_num = ?", [revision])
        return database

    return make


def command(*words: str, settings: Settings) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
    program = [sys.executable, "-c", "from gateway.operations.cli import main; main()"]
    return subprocess.run([*program, *words], env=inherited | settings, capture_output=True, text=True, timeout=200)


def schema_of(database: Path) -> tuple[str, list[str]]:
    with closing(sqlite3.connect(database)) as opened:
        revision = opened.execute("SELECT version_num FROM alembic_version").fetchone()[0]
        return revision, [row[0] for row in opened.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")]


@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_a_command_leaves_the_schema_of_an_earlier_version(
    words: list[str], settings: Settings, at_revision: Callable[[str], Path]
) -> None:
    database = at_revision(_EARLIER)
    before = schema_of(database)

    said = refusal(*words, settings=settings)

    assert f"has schema {_EARLIER}, and this version of AIO needs {head_revision()}: run `aio migrate`" in said
    assert schema_of(database) == before


def test_a_start_upgrades_the_schema_of_an_earlier_version(
    settings: Settings, at_revision: Callable[[str], Path], tmp_path: Path
) -> None:
    database = at_revision(_EARLIER)

    with served(tmp_path / "data", tmp_path / "cache", "--catalog", settings["AIO_CATALOG"]):
        assert schema_of(database)[0] == head_revision()


@pytest.mark.parametrize("words", [["migrate"], ["keys", "list"], ["report", "live"]], ids=" ".join)
def test_a_newer_database_is_named_and_kept(
    words: list[str], settings: Settings, at_revision: Callable[[str], Path]
) -> None:
    database = at_revision("9999")
    before = schema_of(database)

    said = refusal(*words, settings=settings)

    assert f"is newer than this version of AIO (schema 9999, known up to {head_revision()})" in said
    assert schema_of(database) == before


def test_a_start_on_a_newer_database_ends_with_one_sentence(
    settings: Settings, at_revision: Callable[[str], Path]
) -> None:
    at_revision("9999")

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


def test_the_checklist_fails_while_the_database_does_not_answer(settings: Settings) -> None:
    with closing(held_port()) as held:
        url = f"postgresql://aio:secret@127.0.0.1:{held.getsockname()[1]}/aio"
        ended = command("check", "--security", "--json", settings=settings | {"AIO_DATABASE_URL": url})
    items = {item["id"]: item["status"] for item in json.loads(ended.stdout)}
    assert (ended.returncode, items["admin-keys"]) == (1, "failed")
