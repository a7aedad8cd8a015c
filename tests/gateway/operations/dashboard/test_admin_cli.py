"""`aio admin`: who may sign in by name."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.gateway.in_process_cli import aio
from tests.gateway.operations.dashboard.browsing import PASSWORD


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIO_DATA_DIR", str(tmp_path))
    return tmp_path


def ran(*arguments: str, typed: str = "") -> Result:
    return aio("admin", *arguments, typed=typed)


def test_a_user_is_added_shown_without_a_password_and_removed(folder: Path) -> None:
    added = ran("add-user", "ada", "--role", "operator", "--password-stdin", typed=f"{PASSWORD}\n")
    assert (added.exit_code, added.output) == (0, "ada may sign in at /admin as operator\n")
    shown = json.loads(ran("list", "--json").output)["rows"]
    assert [(row["name"], row["role"]) for row in shown] == [("ada", "operator")]
    assert "password" not in shown[0]
    assert "ada" in ran("list").output
    assert ran("remove", "ada").exit_code == 0
    assert json.loads(ran("list", "--json").output)["rows"] == []


@pytest.mark.parametrize("name", ["", "key of ada", "a" * 200, "<script>"])
def test_a_name_that_cannot_be_is_refused(folder: Path, name: str) -> None:
    assert ran("add-user", name, "--password-stdin", typed=f"{PASSWORD}\n").exit_code == 2


def test_short_passwords_second_adas_and_strangers_are_refused(folder: Path) -> None:
    assert "12" in ran("add-user", "ada", "--password-stdin", typed="short\n").output
    assert ran("add-user", "ada", typed=f"{PASSWORD}\n{PASSWORD}\n").exit_code == 0
    assert "already" in ran("add-user", "ada", "--password-stdin", typed=f"{PASSWORD}\n").output
    assert "no user" in ran("remove", "bob").output
