"""`aio check` says what the file of keys would change, and where prompts and answers go in traces."""

import secrets
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.base.settings import Settings
from gateway.operations.setup.checks import check_traced_texts
from tests.gateway.in_process_cli import aio
from tests.gateway.operations.setup.model_servers import model_server, openai_pages
from tests.ports import held_port

KEYS = """
[[teams]]
name = "research"
budgets = { day = 10 }

[[keys]]
name = "ada"
team = "research"
secret_env = "ADA_SECRET"
budgets = { month = 25.5 }

[[keys]]
name = "ben"
"""
NEW = "teams 1, keys 2, budgets 2; applying it would make changes: 1 team.created, 2 budget.set, 2 key.created"
OTLP = {"AIO_TRACE_EXPORTER": "otlp", "AIO_TRACE_CONTENT": "gen_ai"}


@pytest.fixture(autouse=True)
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIO_CATALOG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("AIO_DATA_DIR", "data")
    monkeypatch.setenv("ADA_SECRET", secrets.token_hex(32))
    Path("keys.toml").write_text(KEYS)
    with model_server(openai_pages("m")) as server:
        tiers = [f'[[tiers]]\nname = "{name}"\nurl = "{server.url}"\n' for name in "ab"]
        Path("aio.toml").write_text("\n".join(tiers))
        yield


def test_without_either_setting_nothing_is_said() -> None:
    result = aio("check")
    assert result.exit_code == 0, result.output
    assert "Keys file" not in result.output
    assert "Traces" not in result.output


def test_a_file_of_keys_is_compared_with_the_database_and_changes_nothing() -> None:
    before = aio("check", "--keys-file", "keys.toml")
    assert before.exit_code == 0, before.output
    assert f"Keys file keys.toml: {NEW}\n" in before.output
    assert not Path("data/aio.sqlite3").exists()

    assert aio("keys", "apply", "keys.toml").exit_code == 0
    assert "budgets 2; the database has them so\n" in aio("check", AIO_KEYS_FILE="keys.toml").output

    Path("keys.toml").write_text(KEYS.replace("25.5", "30"))
    for _ in range(2):
        changed = aio("check", "--keys-file", "keys.toml").output
        assert "budgets 2; applying it would make changes: 1 budget.set\n" in changed


def test_a_database_that_was_never_migrated_has_none_of_them() -> None:
    Path("data").mkdir()
    sqlite3.connect("data/aio.sqlite3").close()
    assert f"Keys file keys.toml: {NEW}\n" in aio("check", "--keys-file", "keys.toml").output


def test_a_file_is_read_while_the_database_is_away() -> None:
    with held_port() as held:
        away = f"postgresql://aio@127.0.0.1:{held.getsockname()[1]}/aio"
        result = aio("check", "--keys-file", "keys.toml", AIO_DATABASE_URL=away)
    # The database itself is a problem; of the file as much is said as can be.
    assert result.exit_code == 1, result.output
    assert "does not answer (ConnectionRefusedError)" in result.output
    assert "budgets 2; what it changes is not known: the database cannot be read (" in result.output


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("day = 10", "day = -10", "keys.toml, [[teams]] research, budgets.day"),
        ("ADA_SECRET", "ABSENT", "[[keys]] ada, secret_env: the variable ABSENT is not set"),
        ('team = "research"', 'team = "sales"', "[[keys]] ada, team: there is no team sales"),
        ("[[teams]]", "[[teems]]", "teems"),
    ],
)
def test_a_file_that_cannot_be_applied_fails_the_check(old: str, new: str, problem: str) -> None:
    Path("keys.toml").write_text(KEYS.replace(old, new))
    result = aio("check", "--keys-file", "keys.toml")
    assert result.exit_code == 1
    assert "Keys file keys.toml: PROBLEM" in result.output
    assert problem in result.output.partition("problem: ")[2]


def test_a_file_of_the_settings_is_a_problem_where_the_start_would_make_a_secret() -> None:
    result = aio("check", AIO_KEYS_FILE="keys.toml")
    assert result.exit_code == 1
    assert "[[keys]] ben, secret_env: is missing, and so is secret_hash" in result.output.partition("problem: ")[2]


def test_texts_in_traces_are_said_with_their_receiver_and_a_warning_unless_they_are_redacted() -> None:
    endpoint = "https://user:pass@traces.localhost:4318/v1/traces?token=secret"
    plain = aio("check", **OTLP, AIO_OTLP_TRACES_ENDPOINT=endpoint)
    assert plain.exit_code == 0, plain.output
    said = "Traces: prompts and answers leave this process for https://traces.localhost:4318/v1/traces"
    assert f"{said} (AIO_TRACE_CONTENT=gen_ai), as they are\n" in plain.output
    assert "warning: traces have users' texts, and nothing is taken out of them: set AIO_REDACTION" in plain.output
    assert "secret" not in plain.output
    assert "pass@" not in plain.output

    Path("rules.txt").write_text("canary-[0-9]+\n")
    redacted = aio("check", **OTLP | {"AIO_TRACE_EXPORTER": "console"}, AIO_REDACTION="rules.txt").output
    assert "leave this process for standard output (AIO_TRACE_CONTENT=gen_ai), redacted by rules.txt\n" in redacted
    assert "warning" not in redacted

    unstored = aio("check", **OTLP, AIO_STORE_TEXTS="false").output
    assert "Traces: no prompts or answers in spite of AIO_TRACE_CONTENT=gen_ai, because" in unstored
    assert "warning" not in unstored


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"AIO_TRACE_CONTENT": "both"}, "AIO_TRACE_CONTENT=both: AIO exports no traces; set AIO_TRACE_EXPORTER too"),
        (OTLP | {"AIO_OTLP_ENDPOINT": "collector:4318"}, "must be an http or https URL with a host"),
        (OTLP | {"AIO_OTLP_ENDPOINT": "http://169.254.169.254"}, "is a cloud's metadata address"),
    ],
)
def test_texts_for_traces_that_go_nowhere_fail_the_check(environment: dict[str, str], problem: str) -> None:
    result = aio("check", **environment)
    assert result.exit_code == 1
    assert f"Traces: PROBLEM with AIO_TRACE_CONTENT={environment['AIO_TRACE_CONTENT']}" in result.output
    assert problem in result.output.partition("problem: ")[2]


def test_a_receiver_whose_name_is_a_clouds_metadata_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr("gateway.telemetry.telemetry_url.socket.getaddrinfo", lambda *_, **__: found)
    problem = check_traced_texts(
        Settings(trace_exporter="otlp", trace_content="both", otlp_endpoint="http://traces.example")
    )
    assert problem is not None
    assert "resolves to 169.254.169.254" in problem.problem
