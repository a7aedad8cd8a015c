"""Who a key makes its caller, in the directory of keys: those of the settings and stored ones, while they are valid."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import delete, event, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.inference_request import KEYLESS, Allowance, BudgetRef, Caller
from gateway.base.settings import Settings
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.budget_commands import set_budget
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.directory import PAGE, Directory, KeysUnavailableError, KnownKeys, UnknownKeyError
from gateway.tenancy.keys.key_commands import (
    KeyTerms,
    change_key,
    create_key,
    create_team,
    revoke_key,
    rotate_key,
    shown_key,
)
from gateway.tenancy.keys.key_secrets import keys_of, make_key, new_key
from migrations.tables.tenancy import api_keys, budgets
from quality.store.database import open_database
from tests.database_outage import outage
from tests.polling import eventually
from tests.support.database import migrated
from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.load import load_catalog

NOW = 1_900_000_000.0
ORDER = Order(actor="root", now=NOW, reason="why")
APP, BOSS, WALL = (new_key()[0] for _ in range(3))
CATALOG = load_catalog("laptop")


class Directories:
    """Directories of one database; the time of all is `now`."""

    def __init__(self, engine: AsyncEngine, folder: Path) -> None:
        self.engine, self.now, self.marker = engine, NOW, folder / "keys_required"

    def new(self, *, open_: bool = True, at_first: bool = True, **settings: str) -> Directory:
        clock = DatabaseTime(lambda: self.now, lambda: self.now)
        return Directory(
            self.engine, CatalogInUse(CATALOG), keys_of(Settings(**settings)), clock,  # type: ignore[arg-type]
            may_be_open=open_, marker=self.marker, open_at_first=at_first,
        )  # fmt: skip

    async def loaded(self, **more: Any) -> Directory:
        directory = self.new(**more)
        assert await directory.load()
        return directory


@pytest_asyncio.fixture
async def directories(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Directories]:
    async with migrated(sqlite_url) as engine:
        yield Directories(engine, tmp_path)


def bearer(key: str) -> str:
    return f"Bearer {key}"


def digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


async def test_a_key_of_the_settings_is_a_caller_by_its_name_with_its_budgets(directories: Directories) -> None:
    for subject, usd in (("app", 3.0), ("another", 4.0)):
        await set_budget(directories.engine, "key", subject, "day", usd, ORDER, static=True)
    directory = directories.new(api_keys=f"app={APP},free={BOSS}", private_keys="app")
    assert directory.inference_caller(bearer(APP)).allowance == Allowance(), "budgets are not known yet"
    await directory.load()
    app = directory.inference_caller(bearer(APP))
    assert (app.key_id, app.name, app.scopes, app.consent.reuse) == ("app", "app", {"inference"}, False)
    assert [(one.period, one.amount_usd) for one in app.allowance.budgets] == [("day", 3.0)]
    assert directory.caller_of("app") == app
    free = directory.inference_caller(bearer(BOSS))
    assert (free.allowance, free.consent.reuse) == (Allowance(), True)
    assert (directory.is_static("app"), directory.is_static("nobody")) == (True, False)
    for wrong, said in ((None, "Missing"), ("Basic abc", "Missing"), (bearer("x"), "Wrong")):
        with pytest.raises(UnknownKeyError, match=said):
            directory.inference_caller(wrong)


async def test_administrators_and_viewers_of_the_settings(directories: Directories) -> None:
    directory = directories.new(admin_keys=f"boss={BOSS}", viewer_keys=f"wall={WALL}", api_keys=f"app={APP}")
    boss, wall = directory.admin_caller(bearer(BOSS)), directory.admin_caller(bearer(WALL))
    assert (boss.key_id, boss.scopes, wall.key_id, wall.scopes) == ("boss", {"admin", "viewer"}, "wall", {"viewer"})
    assert directory.admin_with(digest(WALL)) == wall
    assert directory.admin_named("boss", lambda found: found == digest(BOSS)) == boss
    assert [directory.knows(bearer(key)) for key in (BOSS, WALL, APP, "x")] == [True, True, True, False]
    for raises in (
        lambda: directory.admin_caller(bearer(APP)),
        lambda: directory.admin_with(digest(APP)),
        lambda: directory.admin_named("boss", lambda found: False),
        lambda: directory.inference_caller(bearer(BOSS)),
    ):
        with pytest.raises(KeysUnavailableError):
            raises()
    await directory.load()
    with pytest.raises(UnknownKeyError, match="Wrong"):
        directory.admin_named("boss", lambda found: False)
    assert directory.has_admin
    assert directories.new(viewer_keys=f"wall={WALL}").has_admin
    assert not directories.new(api_keys=f"app={APP}").has_admin


async def test_a_stored_key_is_valid_until_its_end_its_revocation_or_the_end_of_a_grace(
    directories: Directories,
) -> None:
    engine = directories.engine
    ends = await create_key(engine, "ends", None, KeyTerms(expires_at=NOW + 100), ORDER)
    rotated = await create_key(engine, "rotated", None, KeyTerms(expires_at=NOW + 100), ORDER)
    again = await rotate_key(engine, rotated.key_id, 50, ORDER)
    late = await rotate_key(engine, "ends", 5000, ORDER)
    directory = await directories.loaded()
    assert (again.old_until, again.name, again.prefix) == (NOW + 50, "rotated", again.key[: len(again.prefix)])

    def valid() -> list[bool]:
        return [directory.knows(bearer(key)) for key in (rotated.key, again.key, ends.key, late.key)]

    directories.now += 49.5
    assert valid() == [True] * 4
    directories.now += 0.5
    assert valid() == [False, True, True, True]
    with pytest.raises(UnknownKeyError, match="was rotated: use its new secret"):
        directory.admin_caller(bearer(rotated.key))
    directories.now += 50
    assert valid() == [False] * 4, "a grace is no longer than the key"
    with pytest.raises(UnknownKeyError, match="expired"):
        directory.caller_of(ends.key_id)


async def test_the_caller_of_a_former_request_has_its_current_terms(directories: Directories) -> None:
    engine = directories.engine
    made = await create_key(engine, "ada", None, KeyTerms(scopes=["viewer"]), ORDER)
    directory = directories.new()
    with pytest.raises(KeysUnavailableError):
        directory.caller_of(made.key_id)
    await directory.load()
    assert directory.caller_of(None) is KEYLESS
    assert directory.caller_of(made.key_id).name == "ada"
    with pytest.raises(UnknownKeyError, match="no longer exists"):
        directory.caller_of("key_of_nobody")
    await create_key(engine, "first", None, KeyTerms(), ORDER)
    await revoke_key(engine, "ada", ORDER)
    await directory.load()
    with pytest.raises(UnknownKeyError, match="revoked"):
        directory.caller_of(made.key_id)
    with pytest.raises(UnknownKeyError, match="required now"):
        directory.caller_of(None)


async def test_a_sign_in_holds_as_long_as_one_of_the_secrets_of_its_key(directories: Directories) -> None:
    made = await create_key(directories.engine, "ada", None, KeyTerms(scopes=["admin"]), ORDER)
    directory = directories.new()
    with pytest.raises(KeysUnavailableError):
        directory.admin_named(made.key_id, lambda found: True)
    await rotate_key(directories.engine, "ada", 50, ORDER)
    await directory.load()

    def named() -> Caller:
        return directory.admin_named(made.key_id, lambda found: found == digest(made.key))

    assert (named().name, named().scopes) == ("ada", {"admin"})
    directories.now += 50
    with pytest.raises(UnknownKeyError, match="was rotated"):
        named()
    with pytest.raises(UnknownKeyError, match="Wrong"):
        directory.admin_named(made.key_id, lambda found: False)


@pytest.mark.parametrize(
    ("given", "asks"),
    [
        ({}, False), ({"open_": False}, True), ({"at_first": False}, False), ({"api_keys": f"app={APP}"}, True),
        ({"admin_keys": f"boss={BOSS}"}, False),
    ],
)  # fmt: skip
async def test_callers_need_a_key_if_there_are_keys_or_it_may_not_be_open(
    directories: Directories, given: dict[str, Any], asks: bool
) -> None:
    before = directories.new(**given)
    assert (before.asks_for_keys, before.is_read) == (asks or given == {"at_first": False}, False)
    after = await directories.loaded(**given)
    assert (after.asks_for_keys, after.is_read) == (asks, True)


async def test_a_restart_without_the_database_opens_no_gateway_that_had_keys(directories: Directories) -> None:
    boss = await create_key(directories.engine, "boss", None, KeyTerms(scopes=["admin", "viewer"]), ORDER)
    directory = await directories.loaded()
    assert (directory.asks_for_keys, directory.has_admin, directories.marker.exists()) == (False, True, False)
    made = await create_key(directories.engine, "ada", None, KeyTerms(scopes=["viewer", "inference"]), ORDER)
    await revoke_key(directories.engine, made.key_id, ORDER)
    await revoke_key(directories.engine, boss.key_id, ORDER)
    await directory.load()
    assert (directory.asks_for_keys, directory.has_admin, directories.marker.exists()) == (True, False, True)
    assert directories.new().asks_for_keys
    await change_key(
        directories.engine,
        (await create_key(directories.engine, "eve", None, KeyTerms(), ORDER)).key_id,
        KeyTerms(scopes=["viewer"]),
        ORDER,
    )
    await directory.load()
    assert directory.has_admin, "a viewer"


async def test_a_database_that_lost_its_keys_opens_nothing_until_the_marker_is_removed(
    directories: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    await create_key(directories.engine, "ada", None, KeyTerms(), ORDER)
    await directories.loaded()
    async with directories.engine.begin() as connection:
        await connection.execute(delete(api_keys))
    lost = await directories.loaded()
    assert lost.asks_for_keys
    with pytest.raises(UnknownKeyError, match="required now"):
        lost.caller_of(None)
    assert "there is none for answers" in str(lost.problem)
    assert f"but {directories.marker} says that there were some" in caplog.text
    made = await create_key(directories.engine, "eve", None, KeyTerms(), ORDER)
    await lost.load()
    assert (lost.inference_caller(bearer(made.key)).name, lost.problem) == ("eve", None)
    async with directories.engine.begin() as connection:
        await connection.execute(delete(api_keys))
    directories.marker.unlink()
    assert not (await directories.loaded()).asks_for_keys


async def test_a_marker_that_the_disk_refuses_is_made_at_a_later_look(directories: Directories) -> None:
    await create_key(directories.engine, "ada", None, KeyTerms(), ORDER)
    folder = directories.marker.parent
    directories.marker = folder / "missing" / "keys_required"
    directory = await directories.loaded()
    (folder / "missing").mkdir()
    assert not await directory.load()
    assert directories.marker.exists()


async def test_unread_keys_are_a_problem_and_unusable_where_callers_need_them(directories: Directories) -> None:
    directory, open_, static = (
        directories.new(open_=False), directories.new(), directories.new(open_=False, api_keys=f"app={APP}"),
    )  # fmt: skip
    with outage(directories.engine):
        for one in (directory, open_, static):
            with pytest.raises(OSError, match="does not answer"):
                await one.load()
    assert [one.is_unusable for one in (directory, open_, static)] == [True, False, False]
    assert directory.problem == "stored keys cannot be read (OSError): requests with them get 503"
    await directory.load()
    assert (directory.problem, directory.is_unusable) == (None, False)
    with outage(directories.engine), pytest.raises(OSError, match="does not answer"):
        await directory.load()
    assert directory.problem == "changes of stored keys cannot be read (OSError): known keys stay valid"
    assert not directory.is_unusable


async def test_another_scope_for_the_only_key_opens_nothing_and_is_said(
    directories: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    await create_key(directories.engine, "ada", None, KeyTerms(), ORDER)
    directory = await directories.loaded()
    assert directory.asks_for_keys
    await change_key(directories.engine, "ada", KeyTerms(scopes=["viewer"]), ORDER)
    await directory.load()
    assert directory.asks_for_keys
    assert "the last stored key for answers has ended" in caplog.text
    assert (await directories.loaded()).asks_for_keys, "after a restart too"


async def test_the_time_of_the_last_key_is_said_once_when_it_is_over(
    directories: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    await create_key(directories.engine, "ends", None, KeyTerms(expires_at=NOW + 10), ORDER)
    directory = await directories.loaded()
    assert not await directory.load()
    assert "has ended" not in caplog.text
    directories.now += 10
    for _ in range(2):
        assert not await directory.load(), "nothing changed in the database"
    assert caplog.text.count("the last stored key for answers has ended") == 1
    assert directory.asks_for_keys


async def test_only_a_valid_key_may_administer(directories: Directories) -> None:
    ends = KeyTerms(scopes=["admin"], expires_at=NOW + 10)
    await create_key(directories.engine, "ends", None, ends, ORDER)
    for number in range(2):
        await create_key(directories.engine, f"app {number}", None, KeyTerms(), ORDER)
    assert (await directories.loaded()).has_admin
    directories.now += 10
    assert not (await directories.loaded()).has_admin


async def test_budgets_that_were_read_before_the_database_went_away_are_read_again(directories: Directories) -> None:
    engine = directories.engine
    directory = await directories.loaded(api_keys=f"app={APP}")
    await set_budget(engine, "key", "app", "day", 3.0, ORDER, static=True)

    def refuse(_: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "FROM api_keys" in statement:
            raise OSError("the database went away")

    event.listen(engine.sync_engine, "before_cursor_execute", refuse)
    with pytest.raises(OSError, match="went away"):
        await directory.load()
    event.remove(engine.sync_engine, "before_cursor_execute", refuse)
    await directory.load()
    assert [one.amount_usd for one in directory.inference_caller(bearer(APP)).allowance.budgets] == [3.0]


async def test_a_key_is_charged_to_its_own_budgets_and_its_teams(directories: Directories) -> None:
    engine = directories.engine
    team = await create_team(engine, "lab", ORDER)
    for name, of in (("ada", team), ("bob", "lab"), ("eve", None)):
        await create_key(engine, name, of, KeyTerms(), ORDER)
    directory = await directories.loaded()
    ids = {name: (await shown_key(engine, name))["key_id"] for name in ("ada", "bob", "eve")}

    async def amounts() -> dict[str, list[float]]:
        await directory.load()
        return {
            name: [ref.amount_usd for ref in directory.caller_of(key).allowance.budgets] for name, key in ids.items()
        }

    await set_budget(engine, "key", "ada", "day", 1.0, ORDER)
    await set_budget(engine, "key", "eve", "day", 2.0, ORDER)
    assert await amounts() == {"ada": [1.0], "bob": [], "eve": [2.0]}
    await set_budget(engine, "team", "lab", "day", 3.0, ORDER)
    assert await amounts() == {"ada": [1.0, 3.0], "bob": [3.0], "eve": [2.0]}
    # A key's change alone leaves its budgets.
    await change_key(engine, "ada", KeyTerms(strict=True), ORDER)
    assert (await amounts())["ada"] == [1.0, 3.0]
    assert directory.caller_of(ids["ada"]).strict
    assert directory.caller_of(ids["ada"]).team_name == "lab"


async def test_exactly_a_page_of_keys_is_followed_by_an_empty_one(directories: Directories) -> None:
    made = await create_key(directories.engine, "one", None, KeyTerms(), ORDER)
    async with directories.engine.begin() as connection:
        row = dict((await connection.execute(select(api_keys))).mappings().one())
        rows = [
            row | {"key_id": f"key_{n:06}", "name": f"user {n}", "digest": f"{n:064x}"} for n in range(1, PAGE)
        ]  # fmt: skip
        await connection.execute(insert(api_keys), rows)
    queries: list[Any] = []
    event.listen(
        directories.engine.sync_engine, "before_cursor_execute",
        lambda _, cursor, statement, parameters, *rest: queries.append(parameters)
        if "FROM api_keys" in statement else None,
    )  # fmt: skip
    directory = await directories.loaded()
    assert directory.knows(bearer(made.key))
    assert [PAGE in tuple(parameters) for parameters in queries] == [True, True]
    assert PAGE == 1000


async def test_a_budget_at_the_end_of_a_page_is_charged_once(directories: Directories) -> None:
    subjects = [f"s{number:04}" for number in range(PAGE + 1)]
    row = {"subject_kind": "key", "period": "day", "amount_microusd": 1, "created_at": 1.0}
    async with directories.engine.begin() as connection:
        await connection.execute(
            insert(budgets), [row | {"budget_id": f"budget_{one}", "subject": one} for one in subjects]
        )
    keys = {one: new_key()[0] for one in subjects[-3:]}
    directory = await directories.loaded(api_keys=",".join(f"{name}={key}" for name, key in keys.items()))
    for name, key in keys.items():
        (charged,) = directory.inference_caller(bearer(key)).allowance.budgets
        assert charged.budget_id == f"budget_{name}"


async def test_another_catalogue_is_read_again_and_a_database_that_is_away_keeps_the_old_keys(
    directories: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    unread = directories.new()
    await unread.renew()
    assert unread.is_read
    made = await create_key(directories.engine, "ada", None, KeyTerms(tiers=[1, 4]), ORDER)
    directory = await directories.loaded()
    directory._catalog.current = msgspec.structs.replace(CATALOG, tiers=CATALOG.tiers[:2])
    away = open_database("postgresql://missing@127.0.0.1:1/none")
    directory._engine = away
    await directory.renew()
    assert "keys cannot be read (ConnectionRefusedError); the previous catalogue's tiers apply" in caplog.text
    assert directory.inference_caller(bearer(made.key)).consent.tiers == {1, 4}
    await away.dispose()
    directory._engine = directories.engine
    assert await directory.load()
    assert directory.inference_caller(bearer(made.key)).consent.tiers == {1}


async def test_changes_are_followed_and_an_outage_is_said_once(
    directories: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    directory = directories.new()
    looks, away = 0, [True]

    def look(_: object) -> None:
        nonlocal looks
        looks += 1
        if away[0]:
            raise OSError("the database does not answer")

    event.listen(directories.engine.sync_engine, "begin", look)
    following = asyncio.create_task(directory.follow(0.001))
    for _ in range(2):
        away[0], before = True, looks
        await eventually(lambda before=before: looks > before + 3)  # type: ignore[misc]
        away[0], before = False, looks
        await eventually(lambda before=before: looks > before + 1)  # type: ignore[misc]
    assert directory.is_read
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    said = [record.getMessage() for record in caplog.records if "known keys stay valid" in record.getMessage()]
    assert said == ["keys cannot be read (OSError); known keys stay valid"] * 2


async def test_changes_are_looked_for_as_often_as_that_is_set(
    directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, waits = directories.new(), list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await directory.follow(7.0)
    assert (waits, directory.is_read) == ([7.0, 7.0], True)


async def test_a_new_keys_terms_are_those_of_inference_without_limits(directories: Directories) -> None:
    made = await create_key(directories.engine, "ada", None, KeyTerms(), ORDER)
    caller = (await directories.loaded()).inference_caller(bearer(made.key))
    assert caller == Caller(key_id=made.key_id, name="ada", scopes=frozenset({"inference"}))


@pytest.mark.parametrize(
    ("tiers", "models", "allowed"),
    [
        (None, None, None), ([1, 3, 9], None, {1, 3}), (None, ["smollm2-int4"], {1}), (None, ["tier-2"], {2}),
        ([1, 2], ["smollm2-bf16"], {2}), ([1], ["tier-2"], set()),
    ],
)  # fmt: skip
def test_a_tier_has_to_be_in_both_lists(tiers: Any, models: Any, allowed: set[int] | None) -> None:
    row = dict.fromkeys([column.name for column in api_keys.c]) | {
        "key_id": "k", "name": "n", "digest": "00", "scopes": ["inference"], "consent": True, "local_only": False,
        "priority_ceiling": 1, "strict": True, "tiers": tiers, "models": models, "min_tier": 2, "team_id": "t",
        "aliases": {"a": "b"}, "requests_per_minute": 1, "tokens_per_minute": 2, "concurrency": 3,
    }  # fmt: skip
    keys = KnownKeys(CATALOG, {("team", "t"): (BudgetRef(budget_id="b", period="day", amount_usd=1.0),)})
    caller = keys.caller_of(row)
    assert caller.consent.tiers == allowed
    assert (caller.min_tier, caller.strict, caller.aliases, caller.priority_ceiling) == (2, True, {"a": "b"}, 1)
    allowance = caller.allowance
    assert (allowance.requests_per_minute, allowance.tokens_per_minute, allowance.concurrency) == (1, 2, 3)
    assert [ref.budget_id for ref in allowance.budgets] == ["b"]


async def test_a_second_rotation_leaves_each_secret_the_time_that_it_was_given(directories: Directories) -> None:
    engine = directories.engine
    first = await create_key(engine, "ada", None, KeyTerms(), ORDER)
    second = await rotate_key(engine, "ada", 50, ORDER)
    third = await rotate_key(engine, "ada", 100, ORDER)
    directory = await directories.loaded()

    def valid() -> list[bool]:
        return [directory.knows(bearer(one.key)) for one in (first, second, third)]

    assert (await shown_key(engine, "ada"))["older_secrets"] == [{"prefix": first.prefix, "until": NOW + 50}]
    assert third.notice is not None
    assert first.prefix in third.notice
    directories.now += 49.5
    assert valid() == [True, True, True]
    directories.now += 0.5
    assert valid() == [False, True, True]
    with pytest.raises(UnknownKeyError, match="was rotated: use its new secret"):
        directory.inference_caller(bearer(first.key))
    directories.now += 50
    assert valid() == [False, False, True]


async def test_a_rotation_with_a_shorter_grace_ends_all_earlier_secrets_by_then(directories: Directories) -> None:
    engine = directories.engine
    issued = [await create_key(engine, "ada", None, KeyTerms(), ORDER)]
    issued += [await rotate_key(engine, "ada", seconds, ORDER) for seconds in (1000, 1000, 10)]
    directory = await directories.loaded()

    def valid() -> list[bool]:
        return [directory.knows(bearer(one.key)) for one in issued]

    directories.now += 9.5
    assert valid() == [True] * 4
    directories.now += 0.5
    assert valid() == [False, False, False, True]
    now = await rotate_key(engine, "ada", 0, Order(actor="root", now=directories.now, reason="leaked"))
    issued.append(now)
    await directory.load()
    assert valid() == [False] * 4 + [True]
    assert (now.notice, (await shown_key(engine, "ada"))["older_secrets"]) == (None, None)


async def test_a_secret_that_comes_back_is_current_and_no_older_one(directories: Directories) -> None:
    engine, secret = directories.engine, make_key()
    await create_key(engine, "ada", None, KeyTerms(), ORDER, secret)
    for _ in range(2):
        await rotate_key(engine, "ada", 50, ORDER)
    await rotate_key(engine, "ada", 50, ORDER, secret)
    directory = await directories.loaded()
    directories.now += 60
    assert directory.inference_caller(bearer(secret.key)).name == "ada"
