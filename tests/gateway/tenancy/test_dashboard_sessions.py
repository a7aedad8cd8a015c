"""Sessions and users of the dashboard on a database, without HTTP: how long each lasts, and whose it is."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from argon2 import PasswordHasher
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.changes import Order, TenancyError, UnknownSubjectError
from gateway.tenancy.keys.directory import Directory
from gateway.tenancy.keys.key_commands import KeyTerms, create_key, revoke_key, rotate_key
from gateway.tenancy.keys.key_secrets import keys_of, new_key
from gateway.tenancy.users import sessions, users
from gateway.tenancy.users.sessions import (
    SESSION_SECONDS,
    Holder,
    Sessions,
    SessionsUnavailableError,
    csrf_is_right,
    csrf_of,
    new_token,
)
from gateway.tenancy.users.users import (
    ProviderUser,
    Role,
    UserOrder,
    add_user,
    admit_provider_user,
    change_role,
    end_sessions,
    kept_password,
    password_is_right,
    remove_user,
)
from migrations.tables.audit import audit_events
from migrations.tables.tenancy import dashboard_sessions, dashboard_users
from tests.database_outage import outage
from tests.support.database import migrated
from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.load import load_catalog

NOW = 1_900_000_000.0
ORDER = Order(actor="user:root", now=NOW, reason="why")
BOSS = new_key()[0]
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def password_hasher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash of a password costs 1 ms instead of 50."""
    monkeypatch.setattr(users, "_ARGON2", quick := PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1))
    monkeypatch.setattr(users, "_HASH_OF_NOTHING", quick.hash("of no user"))


class World:
    """Sessions of two gateways on one database, at the time `now`."""

    def __init__(self, engine: AsyncEngine, folder: Path) -> None:
        self.engine, self.now, self._jumped = engine, NOW, 0.0
        self._clock = clock = DatabaseTime(lambda: self.now + self._jumped, lambda: self.now)
        self.directory = Directory(
            engine, CatalogInUse(load_catalog("laptop")), keys_of(Settings(admin_keys=f"boss={BOSS}")), clock,
            may_be_open=True, marker=folder / "marker", open_at_first=True,
        )  # fmt: skip
        self.here, self.there = (Sessions(engine, self.directory, clock) for _ in range(2))

    async def jump(self, seconds: float) -> None:
        """Set the machine's clock, which is then looked at; durations go on as before."""
        self._jumped += seconds
        async with self.engine.connect() as connection:
            await self._clock.look(connection)

    async def user(self, name: str, role: Role = "viewer") -> Holder:
        await add_user(self.engine, UserOrder(name=name, password=PASSWORD, role=role), ORDER)
        return Holder(user_name=name)

    async def signed_in(self, token: str, where: Sessions | None = None) -> str | None:
        caller = await (where or self.here).caller(token)
        return None if caller is None else str(caller.key_id)

    async def events(self) -> list[tuple[str, str, Any]]:
        columns = (audit_events.c.action, audit_events.c.subject, audit_events.c.details)
        async with self.engine.connect() as connection:
            rows = await connection.execute(select(*columns).order_by(audit_events.c.audit_event_id))
            return [tuple(row) for row in rows]


@pytest_asyncio.fixture
async def world(sqlite_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with migrated(sqlite_url) as engine:
        yield World(engine, tmp_path)


def holder(key_id: str, key: str) -> Holder:
    return Holder(key_id=key_id, key_digest=hashlib.sha256(key.encode()).digest())


async def test_a_session_lasts_twelve_hours_and_expired_ones_are_deleted(world: World) -> None:
    ann, bob = await world.user("ann", "operator"), await world.user("bob")
    token = await world.here.begin(ann)
    caller = await world.here.caller(token)
    assert caller is not None
    assert (caller.key_id, caller.name, caller.scopes) == ("user:ann", "ann", {"viewer", "operator"})
    assert SESSION_SECONDS == 12 * 3600
    world.now += SESSION_SECONDS - 0.5
    assert await world.signed_in(token) == "user:ann"
    world.now += 0.5
    assert await world.signed_in(token) is None
    await world.here.begin(bob)
    assert await _stored(world) == {"ann", "bob"}, "one that ends now is deleted later"
    world.now += 0.5
    await world.here.begin(bob)
    assert await _stored(world) == {"bob"}
    assert await world.signed_in("of nobody") is None


@pytest.mark.parametrize("days", [-1, 1])
async def test_a_clock_that_jumps_by_a_day_gives_no_session_time(world: World, days: int) -> None:
    """A session ends with its user and after twelve hours; a user whose session ended early signs in again."""
    ann = await world.user("ann")
    tokens = [await world.here.begin(ann) for _ in range(2)]
    await world.jump(days * 86_400)
    if days > 0:
        assert await world.signed_in(tokens[0]) is None
        tokens = [await world.here.begin(ann) for _ in range(2)]
        await world.jump(-86_400)
    assert await world.signed_in(tokens[0]) == "user:ann"
    await end_sessions(world.engine, "ann", ORDER)
    world.now += sessions.RECHECK_SECONDS
    assert await world.signed_in(tokens[0]) is None
    token = await world.here.begin(ann)
    world.now += SESSION_SECONDS
    assert await world.signed_in(token) is None


async def _stored(world: World) -> set[str | None]:
    async with world.engine.connect() as connection:
        return set(await connection.scalars(select(dashboard_sessions.c.user_name)))


async def test_a_session_is_looked_up_again_after_two_seconds(world: World) -> None:
    token = await world.here.begin(await world.user("ann"))
    other = await world.here.begin(await world.user("eve", "admin"))
    assert await world.signed_in(token) == "user:ann"
    async with world.engine.begin() as connection:
        await connection.execute(update(dashboard_users).where(dashboard_users.c.name == "ann").values(role="gone"))
    world.now += 1.75
    assert await world.signed_in(token) == "user:ann"
    world.now += 0.25
    assert await world.signed_in(token) is None
    assert await world.signed_in(other) == "user:eve"
    await world.there.end(other)
    assert await world.signed_in(other, world.there) is None
    assert await world.signed_in(other) == "user:eve"
    world.now += 2
    assert await world.signed_in(other) is None
    # What has ended does not come back while it cannot be looked up.
    with outage(world.engine), pytest.raises(SessionsUnavailableError):
        await world.signed_in(other)


async def test_signing_out_ends_that_session_alone(world: World) -> None:
    ann = await world.user("ann")
    first, second = [await world.here.begin(ann) for _ in range(2)]
    for token in (first, second):
        assert await world.signed_in(token) == "user:ann"
    await world.here.end(first)
    assert [await world.signed_in(token) for token in (first, second)] == [None, "user:ann"]
    with outage(world.engine):
        with pytest.raises(OSError, match="does not answer"):
            await world.here.end(second)
        with pytest.raises(SessionsUnavailableError):
            await world.signed_in(second)


async def test_without_the_database_known_sessions_go_on_and_keys_begin_new_ones(world: World) -> None:
    ann = await world.user("ann")
    token = await world.here.begin(ann)
    assert await world.signed_in(token) == "user:ann"
    with outage(world.engine):
        world.now += 3
        assert await world.signed_in(token) == "user:ann"
        for where, unknown in ((world.there, token), (world.here, "of nobody")):
            with pytest.raises(SessionsUnavailableError):
                await world.signed_in(unknown, where)
        with pytest.raises(SessionsUnavailableError):
            await world.here.begin(ann)
        of_key = await world.here.begin(holder("boss", BOSS))
        assert await world.signed_in(of_key) == "boss"
        world.now += SESSION_SECONDS - 0.5
        assert await world.signed_in(of_key) == "boss"
        world.now += 0.5
        assert await world.signed_in(of_key) is None


async def test_a_session_of_a_key_ends_with_that_secret(world: World) -> None:
    made = await create_key(world.engine, "clerk", None, KeyTerms(scopes=["viewer"]), ORDER)
    token = await world.here.begin(holder(made.key_id, made.key))
    forged = await world.here.begin(holder(made.key_id, "another"))
    assert await world.signed_in(token) is None, "the keys are not read yet"
    await world.directory.load()
    assert [await world.signed_in(one) for one in (token, forged)] == [made.key_id, None]
    await rotate_key(world.engine, "clerk", 60, ORDER)
    await world.directory.load()
    assert await world.signed_in(token) == made.key_id
    world.now += 60
    assert await world.signed_in(token) is None
    again = await world.here.begin(holder("boss", BOSS))
    assert await world.signed_in(again) == "boss"
    await revoke_key(world.engine, "clerk", ORDER)


async def test_only_so_many_sessions_are_kept_in_memory_and_the_longest_unused_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST_KNOWN", 2)
    ann = await world.user("ann")
    first, second, third = [await world.here.begin(ann) for _ in range(3)]
    for token in (first, second):
        await world.signed_in(token)
    world.now += 2
    await world.signed_in(first)
    await world.signed_in(third)
    with outage(world.engine):
        assert [await world.signed_in(token) for token in (first, third)] == ["user:ann"] * 2
        with pytest.raises(SessionsUnavailableError):
            await world.signed_in(second)


def test_the_token_of_a_form_is_that_of_its_cookie() -> None:
    token, other = new_token(), new_token()
    assert len(token) == len(other) == 43
    assert csrf_is_right(token, csrf_of(token))
    for sent in (csrf_of(other), "", None):
        assert not csrf_is_right(token, sent)
    assert csrf_of("") == ""
    for sent in ("", None, csrf_of(token)):
        assert not csrf_is_right("", sent)


async def test_each_change_of_a_user_is_written_down_and_changes_that_user_alone(world: World) -> None:
    engine = world.engine
    ann, bob = await world.user("ann"), await world.user("bob", "operator")
    tokens = [await world.here.begin(one) for one in (ann, ann, bob)]
    assert await change_role(engine, "ann", "admin", ORDER) == "viewer"
    assert await end_sessions(engine, "ann", ORDER) == 2
    assert [await world.signed_in(token) for token in tokens] == [None, None, "user:bob"]
    await remove_user(engine, "ann", ORDER)
    assert await kept_password(engine, "ann") is None
    assert (await kept_password(engine, "bob") or "").startswith("$argon2id$")
    async with engine.connect() as connection:
        columns = (dashboard_users.c.name, dashboard_users.c.role, dashboard_users.c.created_at)
        assert [tuple(row) for row in await connection.execute(select(*columns))] == [("bob", "operator", NOW)]
    assert await world.events() == [
        ("user.added", "ann", {"role": [None, "viewer"]}),
        ("user.added", "bob", {"role": [None, "operator"]}),
        ("user.changed", "ann", {"role": ["viewer", "admin"]}),
        ("user.signed_out", "ann", {"sessions": [2, 0]}),
        ("user.removed", "ann", {"role": ["admin", None]}),
    ]


async def test_a_user_changes_neither_itself_nor_one_that_is_not_there(world: World) -> None:
    await world.user("root", "admin")
    engine = world.engine
    for own in (change_role(engine, "root", "viewer", ORDER), remove_user(engine, "root", ORDER)):
        with pytest.raises(TenancyError, match="another admin has to do that to you"):
            await own
    assert await end_sessions(engine, "root", ORDER) == 0, "signing out everywhere is allowed"
    for missing in (change_role(engine, "eve", "viewer", ORDER), end_sessions(engine, "eve", ORDER)):
        with pytest.raises(UnknownSubjectError, match="there is no user 'eve'"):
            await missing
    with pytest.raises(TenancyError, match="there is a user 'root' already"):
        await world.user("root")


async def test_a_providers_user_is_added_once_and_follows_its_role(world: World) -> None:
    engine = world.engine
    await world.user("bob", "operator")

    def user(name: str, role: Role, identity: str = "1") -> ProviderUser:
        return ProviderUser(name=name, identity=identity, role=role)

    for one in (user("ann", "viewer"), user("eve", "viewer", "2"), user("ann", "viewer"), user("ann", "admin")):
        await admit_provider_user(engine, one, ORDER)
    for taken in (user("bob", "admin"), user("ann", "admin", "3")):
        with pytest.raises(TenancyError, match="belongs to another user here"):
            await admit_provider_user(engine, taken, ORDER)
    async with engine.connect() as connection:
        query = select(dashboard_users.c.name, dashboard_users.c.role).order_by(dashboard_users.c.name)
        rows = [tuple(row) for row in await connection.execute(query)]
    assert rows == [("ann", "admin"), ("bob", "operator"), ("eve", "viewer")]
    assert (await world.events())[1:] == [
        ("user.added", "ann", {"role": [None, "viewer"]}),
        ("user.added", "eve", {"role": [None, "viewer"]}),
        ("user.changed", "ann", {"role": ["viewer", "admin"]}),
    ]
    assert await kept_password(engine, "ann") == "oidc:1"
    assert not await password_is_right(engine, "ann", "oidc:1")
    assert not await password_is_right(engine, "nobody", PASSWORD)


async def test_an_outdated_hash_is_replaced_by_the_right_password_alone(world: World) -> None:
    for name in ("ann", "bob"):
        await world.user(name)
    weak = PasswordHasher(time_cost=1, memory_cost=512, parallelism=1).hash(PASSWORD)
    async with world.engine.begin() as connection:
        await connection.execute(update(dashboard_users).values(password=weak))
    assert not await password_is_right(world.engine, "ann", f"{PASSWORD} ")
    assert await kept_password(world.engine, "ann") == weak
    assert await password_is_right(world.engine, "ann", PASSWORD)
    fresh = await kept_password(world.engine, "ann")
    assert fresh != weak
    assert "m=1024" in str(fresh)
    assert await kept_password(world.engine, "bob") == weak
    assert await password_is_right(world.engine, "ann", PASSWORD)
    assert await kept_password(world.engine, "ann") == fresh, "it is up to date"
