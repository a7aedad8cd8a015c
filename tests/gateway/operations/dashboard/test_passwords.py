"""Passwords of dashboard users: Argon2id hashes, those of weaker parameters replaced at sign-in."""

import asyncio
import threading
import time

import pytest
from argon2 import PasswordHasher
from sqlalchemy import select, update

from gateway.tenancy.changes import Order
from gateway.tenancy.users import users
from gateway.tenancy.users.users import (
    MOST_WAITING,
    TooManyPasswordsError,
    UserOrder,
    add_user,
    in_turn,
    password_is_right,
)
from migrations.tables.tenancy import dashboard_users
from tests.gateway.operations.dashboard.browsing import PASSWORD, browser, sign_in
from tests.support.app import RunningGateway


@pytest.fixture(autouse=True)
def password_hasher() -> None:
    """That of production."""


def weak_hash(password: str) -> str:
    return PasswordHasher(time_cost=1, memory_cost=8 * 1024, parallelism=1).hash(password)


def test_only_the_right_password_matches() -> None:
    for kept in (users.hashed(PASSWORD), weak_hash(PASSWORD)):
        assert users.matches(PASSWORD, kept)
        assert not users.matches(f"{PASSWORD} ", kept)
    assert not users.matches(PASSWORD, None)
    assert not users.matches(PASSWORD, "scrypt:16384:8:1:AAAA:AAAA"), "of no kind that is known"


def test_two_hashes_of_a_password_differ() -> None:
    assert users.hashed(PASSWORD) != users.hashed(PASSWORD)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_argon2_hash_with_weaker_parameters_is_replaced_at_sign_in(aio: RunningGateway) -> None:
    kept = select(dashboard_users.c.password).where(dashboard_users.c.name == "fay")
    await add_user(aio.serving.database, UserOrder(name="fay", password=PASSWORD), Order(actor="test", now=time.time()))
    async with aio.serving.database.begin() as connection:
        mine = update(dashboard_users).where(dashboard_users.c.name == "fay")
        await connection.execute(mine.values(password=weak_hash(PASSWORD)))
    assert not await password_is_right(aio.serving.database, "fay", "wrong password")
    async with aio.serving.database.connect() as connection:
        assert "m=8192" in str(await connection.scalar(kept))
    async with browser(aio) as client:
        assert (await sign_in(client, PASSWORD, "fay")).status_code == 303
    async with aio.serving.database.connect() as connection:
        replaced = str(await connection.scalar(kept))
    assert replaced.startswith("$argon2id$v=19$m=65536,t=3,p=1$")
    assert users.matches(PASSWORD, replaced)


async def test_eight_passwords_of_unknown_devices_may_wait_and_known_devices_always(aio: RunningGateway) -> None:
    database, go = aio.serving.database, threading.Event()
    waiting = [asyncio.create_task(in_turn(go.wait)) for _ in range(7)]
    await asyncio.sleep(0)
    eighth = asyncio.create_task(in_turn(go.is_set))
    await asyncio.sleep(0)
    assert MOST_WAITING == 8
    with pytest.raises(TooManyPasswordsError):
        await in_turn(go.is_set)
    with pytest.raises(TooManyPasswordsError):
        await password_is_right(database, "gus", PASSWORD)
    # An operator's order and a known device do not wait behind strangers.
    await add_user(database, UserOrder(name="gus", password=PASSWORD), Order(actor="test", now=time.time()))
    async with database.begin() as connection:
        mine = update(dashboard_users).where(dashboard_users.c.name == "gus")
        await connection.execute(mine.values(password=weak_hash(PASSWORD)))
    assert await password_is_right(database, "gus", PASSWORD, is_urgent=True)
    assert not eighth.done(), "one after the other"
    go.set()
    await asyncio.gather(*waiting)
    assert await eighth
    assert await in_turn(str, 5) == "5"


def test_an_unknown_user_costs_as_much_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []

    def verify(_: PasswordHasher, kept: str, password: str) -> bool:
        verified.append(kept.rpartition("$")[0].rpartition("$")[0])
        return True

    known = users.hashed(PASSWORD)
    monkeypatch.setattr(PasswordHasher, "verify", verify)
    assert [users.matches(PASSWORD, kept) for kept in (known, None, "oidc:abc")] == [True, False, False]
    assert verified == ["$argon2id$v=19$m=65536,t=3,p=1"] * 3
