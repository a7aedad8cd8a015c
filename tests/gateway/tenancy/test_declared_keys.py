"""`aio keys apply` and AIO_KEYS_FILE: what a file declares is what the database has, and running gateways follow."""

import asyncio
import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import Result
from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.cli.access.keys import DIFFERS
from gateway.tenancy.budgets.budget_commands import states_of
from gateway.tenancy.changes import Order
from gateway.tenancy.declared import DeclarationError, apply_declaration, differences, read_declaration
from gateway.tenancy.keys.key_commands import BUDGETS, KeyTerms, create_key, shown_key
from migrations.tables.audit import audit_events
from migrations.tables.tenancy import api_keys, budgets
from quality.store.database import open_database
from tests.gateway.in_process_cli import aio
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.polling import eventually
from tests.support.app import StartApp
from tests.support.served import served
from tests.support.upstream import Upstream, write_remote_catalog

HASHED = secrets.token_hex(32)
FILE = f"""
[[teams]]
name = "research"
budgets = {{ day = 10 }}

[[keys]]
name = "ada"
team = "research"
secret_env = "ADA_SECRET"
tiers = [1]
requests_per_minute = 60
expires_at = 2099-12-31
budgets = {{ month = 25.5 }}

[[keys]]
name = "ci"
secret_hash = "sha256:{hashlib.sha256(HASHED.encode()).hexdigest()}"
scopes = ["viewer"]

[[keys]]
name = "made"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIO_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ADA_SECRET", secrets.token_hex(32))
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    return path


def ran(*arguments: object) -> Result:
    return aio("keys", *arguments)


def applied(file: Path, *options: str) -> Any:
    result = ran("apply", file, *options, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def actions(done: Any) -> list[str]:
    return [f"{change['action']} {change['name']}" for change in done["changes"]]


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_file_is_applied_once_and_then_changes_nothing(file: Path) -> None:
    first, second = applied(file), applied(file)

    assert actions(first) == [
        "team.created research", "budget.set research", "key.created ada", "budget.set ada", "key.created ci",
        "key.created made",
    ]  # fmt: skip
    assert [key["name"] for key in first["keys"]] == ["made"]
    assert second["changes"] == []
    assert second["keys"] == []


def test_a_dry_run_prints_the_difference_and_changes_nothing(file: Path) -> None:
    before = ran("apply", file, "--dry-run")
    listed = ran("list", "--json")
    applied(file)
    change(file, "requests_per_minute = 60", "requests_per_minute = 90")
    between = ran("apply", file, "--dry-run")
    applied(file)
    after = ran("apply", file, "--dry-run")

    assert (before.exit_code, between.exit_code, after.exit_code) == (DIFFERS, DIFFERS, 0)
    assert json.loads(listed.output)["rows"] == []
    assert between.output == "key.changed    key ada: requests_per_minute 60 -> 90\n"
    assert after.output == "nothing to change\n"


def test_what_a_declared_key_or_team_lacks_goes_back_to_its_default(file: Path) -> None:
    applied(file)
    change(file, "requests_per_minute = 60\n", "")
    change(file, "budgets = { day = 10 }\n", "budgets = { total = 7 }\n")
    done = applied(file)

    assert done["changes"] == [
        {"action": "budget.set", "kind": "team", "name": "research", "changed": {"total": [None, 7.0]}},
        {"action": "budget.removed", "kind": "team", "name": "research", "changed": {"day": [10.0, None]}},
        {"action": "key.changed", "kind": "key", "name": "ada", "changed": {"requests_per_minute": [60, None]}},
    ]


def test_a_changed_secret_replaces_the_old_one_which_stays_valid_for_the_grace_period(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied(file)
    before = json.loads(ran("show", "ada", "--json").output)["key"]
    monkeypatch.setenv("ADA_SECRET", secrets.token_hex(32))
    done = applied(file, "--grace-hours", "2")
    after = json.loads(ran("show", "ada", "--json").output)["key"]

    assert actions(done) == ["key.rotated ada"]
    assert done["keys"] == []
    assert after["old_prefix"] == before["prefix"] != after["prefix"]
    assert after["old_until"] - after["rotated_at"] == pytest.approx(7200)


def test_no_part_of_a_chosen_secret_is_stored_or_printed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_hex(32)
    monkeypatch.setenv("ADA_SECRET", secret)
    done = ran("apply", file)

    shown = ran("show", "ada").output
    assert done.exit_code == 0, done.output
    assert secret[:6] not in done.output + shown
    assert f"sha256:{hashlib.sha256(secret.encode()).hexdigest()[:8]}" in shown


def test_without_prune_what_the_file_does_not_name_stays(file: Path) -> None:
    ran("create", "other")
    ran("create", "boss", "--scope", "admin")
    ran("limit", "other", "--budget-day", "3")
    assert not {"other", "boss"} & {change["name"] for change in applied(file)["changes"]}

    done = applied(file, "--prune")

    assert actions(done) == ["key.revoked other", "budget.removed other"]
    assert done["kept"] == ["boss"]
    assert applied(file, "--prune")["changes"] == []


def test_every_change_has_its_audit_row(file: Path) -> None:
    done = applied(file)

    async def trail() -> list[tuple[str, str, str]]:
        engine = open_database(Settings(data_dir=str(file.parent / "data")).database)
        async with engine.connect() as connection:
            columns = (audit_events.c.action, audit_events.c.actor, audit_events.c.reason)
            rows = [
                tuple(row) for row in await connection.execute(select(*columns).order_by(audit_events.c.audit_event_id))
            ]
        await engine.dispose()
        return rows

    assert asyncio.run(trail()) == [
        (change["action"], "command line", f"declared in {file}") for change in done["changes"]
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("requests_per_minute = 60", "requests_per_minute = 0", "[[keys]] ada, requests_per_minute: Expected `int`"),
        ("requests_per_minute", "requests_per_hour", "[[keys]] ada: Object contains unknown field `requests_per_hour`"),
        ('name = "ci"', 'nam = "ci"', "[[keys]] number 2: Object"),
        ("day = 10", "day = -1", "[[teams]] research, budgets.day: Expected `float` >= 0"),
        ('name = "made"', 'name = "ada"', "[[keys]] ada, name: occurs twice"),
        ('team = "research"', 'team = "sales"', "[[keys]] ada, team: there is no team sales"),
        ("2099-12-31", "2019-12-31", "[[keys]] ada, expires_at: expires_at 2019-12-31 00:00:00 UTC has passed"),
        ("2099-12-31", "2099-12-31T10:00:00", "[[keys]] ada, expires_at: 2099-12-31 10:00:00 lacks an offset"),
        ("ADA_SECRET", "NO_SECRET", "[[keys]] ada, secret_env: the variable NO_SECRET is not set"),
        ("sha256:", "md5:", "[[keys]] ci, secret_hash: Expected `str` of sha256: and 64 hexadecimal digits"),
        ('name = "made"', f'name = "made"\nsecret_hash = "sha256:{hashlib.sha256(HASHED.encode()).hexdigest()}"',
         "[[keys]] made, secret_hash: is the secret of ci too"),
        ('secret_env = "ADA_SECRET"', f'secret_env = "ADA_SECRET"\nsecret_hash = "sha256:{"0" * 64}"',
         "[[keys]] ada, secret_hash: stands next to secret_env"),
        ('[[keys]]\nname = "made"', '[[settings_keys]]\nname = "made"',
         "[[settings_keys]] made, name: is not a name in AIO_API_KEYS"),
        ("[[teams]]", "[[team]]", ": Object contains unknown field `team`"),
        ("[[teams]]", "[[teams", ": is no TOML: "),
    ],
)  # fmt: skip
def test_an_error_names_file_table_and_field_and_nothing_is_done(file: Path, old: str, new: str, said: str) -> None:
    change(file, old, new)
    result = ran("apply", file)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {file}")
    assert said in result.stderr
    assert json.loads(ran("list", "--json").output)["rows"] == []


def test_a_guessable_secret_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA_SECRET", "correct-horse")
    result = ran("apply", file)
    assert result.exit_code == 1
    assert "[[keys]] ada, secret_env: ADA_SECRET: the key of 'ada' is too weak: it has about" in result.stderr
    assert "correct-horse" not in result.stderr


def test_what_the_database_forbids_is_refused_as_a_whole(file: Path) -> None:
    applied(file)
    ran("revoke", "ada")
    change(file, 'name = "made"', 'name = "new"')
    revoked = ran("apply", file)
    change(file, 'name = "ada"', 'name = "eve"')
    taken = ran("apply", file)

    assert "[[keys]] ada, name: was revoked, which is permanent" in revoked.stderr
    assert "[[keys]] eve, secret_env: is, or was, the secret of the key ada" in taken.stderr
    assert "new" not in ran("list").output


def test_a_keys_team_cannot_be_changed(file: Path) -> None:
    applied(file)
    change(file, 'team = "research"\n', "")
    assert "[[keys]] ada, team: the key is of the team research, which cannot be changed" in ran("apply", file).stderr


def test_an_expired_key_may_stay_declared(file: Path) -> None:
    applied(file)
    declared = read_declaration(file, frozenset(), {"ADA_SECRET": secrets.token_hex(32)})
    (ada,) = [key for key in declared.keys if key.name == "ada"]
    assert not isinstance(ada.expires_at, msgspec.UnsetType)
    assert ada.expires_at is not None
    later = ada.expires_at + 1

    async def look() -> list[str]:
        engine = open_database(Settings(data_dir=str(file.parent / "data")).database)
        done = await differences(engine, declared, later)
        await engine.dispose()
        return [change.action for change in done.changes]

    assert asyncio.run(look()) == ["key.rotated"]


def test_budgets_of_a_key_of_the_settings_are_declared_by_its_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIO_API_KEYS", f"static={secrets.token_hex(32)}")
    file.write_text('[[settings_keys]]\nname = "static"\nbudgets = { day = 2 }\n')
    assert applied(file)["changes"][0]["changed"] == {"day": [None, 2.0]}
    assert applied(file)["changes"] == []


async def test_a_running_gateway_follows_the_file(
    file: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, app: StartApp
) -> None:
    secret = secrets.token_hex(32)
    monkeypatch.setenv("ADA_SECRET", secret)
    monkeypatch.setenv("AIO_DATA_DIR", settings.data_dir)
    aio = await app(keys_poll_seconds=0.05)
    await asyncio.to_thread(applied, file)

    async def status(model: str, key: str) -> int:
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
        headers = {"authorization": f"Bearer {key}"}
        return (await aio.http.post("/v1/chat/completions", json=body, headers=headers)).status_code

    async def is_bounded() -> bool:
        return await status("tier-2", secret) == 403

    await eventually(is_bounded)
    assert (await status("tier-1", secret), await status("tier-1", "wrong")) == (200, 401)


@pytest.fixture
def engine(any_engine: AsyncEngine) -> AsyncEngine:
    return any_engine


async def test_several_processes_that_apply_a_file_at_once_make_everything_once(
    file: Path, engine: AsyncEngine
) -> None:
    declared = read_declaration(file, frozenset(), {"ADA_SECRET": secrets.token_hex(32)})
    order = Order(actor="test", now=1e9)
    done = await asyncio.gather(*(apply_declaration(engine, declared, order, grace_seconds=0) for _ in range(4)))

    assert sorted(len(one.changes) for one in done) == [0, 0, 0, 6]
    async with engine.connect() as connection:
        assert len((await connection.execute(select(api_keys))).all()) == 3
        assert len((await connection.execute(select(budgets))).all()) == 2


async def test_an_apply_that_fails_halfway_leaves_nothing(file: Path, engine: AsyncEngine) -> None:
    def fails(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if "INSERT INTO audit_events" in statement:
            raise OSError("the database went away")

    declared = read_declaration(file, frozenset(), {"ADA_SECRET": secrets.token_hex(32)})
    order = Order(actor="test", now=1e9)
    await create_key(engine, "other", None, KeyTerms(), order)
    event.listen(engine.sync_engine, "before_cursor_execute", fails)
    with pytest.raises(OSError, match="went away"):
        await apply_declaration(engine, declared, order, prune=True, grace_seconds=0)

    assert next(change.action for change in (await differences(engine, declared, 1e9)).changes) == "team.created"
    assert (await shown_key(engine, "other"))["revoked_at"] is None


async def test_a_thousand_keys_are_not_a_thousand_statements(tmp_path: Path, engine: AsyncEngine) -> None:
    statements: list[str] = []
    event.listen(
        engine.sync_engine, "before_cursor_execute", lambda _, __, statement, *rest: statements.append(statement)
    )
    path, order = tmp_path / "many.toml", Order(actor="test", now=1e9)

    async def applied(rate: int, salt: str, count: int) -> list[str]:
        path.write_text(
            "\n".join(
                f'[[keys]]\nname = "k{number}"\nrequests_per_minute = {rate}\nbudgets = {{ month = {rate} }}\n'
                f'secret_hash = "sha256:{hashlib.sha256(f"{salt}{number}".encode()).hexdigest()}"'
                for number in range(count)
            )
        )
        statements.clear()
        declared = read_declaration(path, frozenset(), {})
        done = await apply_declaration(engine, declared, order, prune=True, grace_seconds=60)
        return [change.action for change in done.changes]

    assert await applied(60, "a", 1200) == ["key.created", "budget.set"] * 1200
    assert len(statements) < 30
    assert await applied(90, "b", 1200) == ["key.changed", "key.rotated", "budget.set"] * 1200
    assert len(statements) < 30
    assert await applied(90, "b", 1200) == []
    assert await applied(90, "b", 200) == ["key.revoked"] * 1000 + ["budget.removed"] * 1000
    assert len(statements) < 30
    async with engine.connect() as connection:
        assert len((await connection.execute(select(budgets))).all()) == 200
    async with engine.connect() as connection:
        rows = (await connection.execute(select(api_keys).order_by(api_keys.c.created_at))).mappings().all()
        amounts = {row.amount_microusd for row in await connection.execute(select(budgets))}
    assert amounts == {90_000_000}
    assert {(row["requests_per_minute"], row["old_until"], row["tiers"]) for row in rows} == {(90, 1e9 + 60, None)}
    assert len({row["digest"] for row in rows} | {row["old_digest"] for row in rows}) == 2400
    # That of the change and that of the revocations: replicas read the rows above the last revision that they saw.
    assert sorted({row["revision"] for row in rows}) == [3, 4]


async def test_a_new_budget_of_a_stored_key_counts_what_was_spent_before(file: Path, engine: AsyncEngine) -> None:
    issued = await create_key(engine, "made", None, KeyTerms(), Order(actor="test", now=1e9 - 60))
    row = {"request_id": "r", "key_id": issued.key_id, "created_at": 1e9 - 30, "cost_usd": 0.25}
    await insert_requests(engine, row)
    change(file, 'name = "made"', 'name = "made"\nbudgets = { total = 1 }')
    declared = read_declaration(file, frozenset(), {"ADA_SECRET": secrets.token_hex(32)})
    await apply_declaration(engine, declared, Order(actor="test", now=1e9), grace_seconds=0)
    rows = (await BUDGETS.page(engine, {"subject": issued.key_id})).rows

    assert [state.spent_usd for state in await states_of(engine, rows, 1e9)] == [0.25]


async def test_at_a_start_no_key_is_made_without_a_given_secret(file: Path, engine: AsyncEngine) -> None:
    declared = read_declaration(file, frozenset(), {"ADA_SECRET": secrets.token_hex(32)})
    order = Order(actor="test", now=1e9)
    with pytest.raises(DeclarationError, match=r"\[\[keys\]\] made, secret_env: is missing"):
        await apply_declaration(engine, declared, order, grace_seconds=0, may_show=False)
    await apply_declaration(engine, declared, order, grace_seconds=0)
    assert (await apply_declaration(engine, declared, order, grace_seconds=0, may_show=False)).changes == []


@pytest.mark.processes
def test_a_start_applies_the_file_of_its_settings_before_it_serves(
    upstream: Upstream, tmp_path: Path, weight_cache: Path
) -> None:
    secret, file = secrets.token_hex(32), tmp_path / "keys.toml"
    file.write_text('[[keys]]\nname = "ops"\nsecret_env = "OPS_SECRET"\nscopes = ["admin"]\n')
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    environment = {"AIO_KEYS_FILE": str(file), "OPS_SECRET": secret, "AIO_ADMIN_KEYS": ""}
    with served(tmp_path / "data", weight_cache, "--catalog", str(catalog), environment=environment) as aio:
        headers = {"authorization": f"Bearer {secret}"}
        rows = httpx.get(f"{aio.url}/admin/api/keys", headers=headers).json()["rows"]

    # No first admin key was made next to it.
    assert [row["name"] for row in rows] == ["ops"]
