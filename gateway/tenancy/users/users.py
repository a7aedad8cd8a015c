"""Users of the dashboard: a name, a role and the Argon2id hash of a password."""

import asyncio
import base64
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal, TypeVar

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from msgspec import Meta
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.tenancy.changes import Order, TenancyError, UnknownSubjectError, write_down
from migrations.tables.tenancy import dashboard_sessions, dashboard_users
from quality.store.database import writing_first
from quality.store.pages import Listing

T = TypeVar("T")

# RFC 9106's second recommendation: 64 MiB, three passes; about 50 ms of one CPU with a single lane.
_ARGON2 = PasswordHasher(time_cost=3, memory_cost=64 * 1024, parallelism=1)
# Of the same parameters as any other, with a digest that no known password has.
_HASH_OF_NOTHING = (
    f"$argon2id$v=19$m={_ARGON2.memory_cost},t={_ARGON2.time_cost},p={_ARGON2.parallelism}"
    f"${base64.b64encode(secrets.token_bytes(16)).decode().rstrip('=')}"
    f"${base64.b64encode(secrets.token_bytes(32)).decode().rstrip('=')}"
)
# One at a time takes 64 MiB and one CPU at most, however many come together. Known devices do not wait behind others.
_THREAD, _URGENT_THREAD = ThreadPoolExecutor(1, "passwords"), ThreadPoolExecutor(1, "urgent-passwords")
MOST_WAITING = 8
"""How many passwords of unknown devices may wait: half a second on an idle machine, and seconds on a busy one."""
_waiting = 0


class TooManyPasswordsError(Exception):
    """So many passwords wait to be checked that another one would wait for seconds."""


async def in_turn(work: Callable[..., T], *arguments: object, is_urgent: bool = False) -> T:
    """Run `hashed` or `matches` in a thread, in the order of the calls.

    Raises `TooManyPasswordsError` if too many wait already, unless it `is_urgent`, which has a thread of its own.
    """
    global _waiting
    loop = asyncio.get_running_loop()
    if is_urgent:
        return await loop.run_in_executor(_URGENT_THREAD, work, *arguments)
    if _waiting >= MOST_WAITING:
        raise TooManyPasswordsError
    _waiting += 1
    try:
        return await loop.run_in_executor(_THREAD, work, *arguments)
    finally:
        _waiting -= 1


def hashed(password: str) -> str:
    """The hash to store, with its salt and parameters, in the PHC string format. Takes about 50 ms."""
    return _ARGON2.hash(password)


def matches(password: str, kept: str | None) -> bool:
    """Whether `kept` is a hash of `password`; None, for an unknown user, takes as long and is never right, and so does
    what a user of an OpenID provider has instead of one."""
    if kept is None or kept.startswith("oidc:"):
        _verified(password, _HASH_OF_NOTHING)
        return False
    return _verified(password, kept)


def _verified(password: str, kept: str) -> bool:
    try:
        return _ARGON2.verify(kept, password)
    except (VerificationError, InvalidHashError):
        return False


Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
SCOPES_OF: dict[str, frozenset[str]] = {
    "viewer": frozenset({"viewer"}),
    "operator": frozenset({"viewer", "operator"}),
    "admin": frozenset({"viewer", "operator", "admin"}),
}
"""Scopes by role: a viewer reads, an operator also changes knobs and reviews, an admin also changes keys, budgets and
users."""

PROVIDER_PREFIX = "oidc:"
"""What stands for the password of a provider's user, with its identity; no password matches it."""

UserName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}\Z",
        description="1 to 128 Latin letters, digits and characters of ._@-, the first a letter or a digit",
    ),
]
Password = Annotated[str, Meta(min_length=12, max_length=1024)]
USERS = Listing(dashboard_users, "name", (), hidden=("password",))


class UserOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new user of the dashboard; the password has at least 12 characters."""

    name: UserName
    password: Password
    role: Role = "viewer"


class ProviderUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user as an OpenID provider knows it."""

    name: str
    identity: str
    """A digest of issuer and subject, which never changes."""
    role: Role


class RoleOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new role of a user."""

    role: Role


async def add_user(engine: AsyncEngine, user: UserOrder, order: Order) -> None:
    """Raises `TenancyError` if the name is taken."""
    row = {
        "name": user.name,
        "role": user.role,
        "password": await in_turn(hashed, user.password, is_urgent=True),
    }
    try:
        async with engine.begin() as connection:
            await connection.execute(insert(dashboard_users).values(created_at=order.now, **row))
            await write_down(connection, order, "user.added", user.name, {"role": [None, user.role]})
    except IntegrityError as error:
        raise TenancyError(f"there is a user {user.name!r} already", "name") from error


async def admit_provider_user(engine: AsyncEngine, user: ProviderUser, order: Order) -> None:
    """Add a provider's user at its first sign-in; later ones bring its role up to date, and its sessions follow.

    Raises `TenancyError` if the name belongs to another identity or to a user with a password.
    """
    users, kept = dashboard_users.c, PROVIDER_PREFIX + user.identity
    async with engine.begin() as connection:
        row = {"name": user.name, "role": user.role, "password": kept, "created_at": order.now}
        mine = update(dashboard_users).where(users.name == user.name, users.password == kept)
        before: Role | None = await connection.scalar(mine.values(role=users.role).returning(users.role))
        if before is not None and before != user.role:
            await connection.execute(mine.values(role=user.role))
            await write_down(connection, order, "user.changed", user.name, {"role": [before, user.role]})
        if before is not None:
            return
        if await connection.scalar(select(users.name).where(users.name == user.name)) is not None:
            raise TenancyError(f"the name {user.name!r} belongs to another user here; an admin can remove that one")
        await connection.execute(insert(dashboard_users).values(**row))
        await write_down(connection, order, "user.added", user.name, {"role": [None, user.role]})


async def change_role(engine: AsyncEngine, name: str, role: Role, order: Order) -> Role:
    """Change a user's role; signed-in sessions follow within two seconds. Returns the previous role.

    Raises `UnknownSubjectError`, and `TenancyError` for one's own role, so that the last admin cannot lock itself out.
    """
    async with writing_first(engine).begin() as connection:
        before = await _role(connection, name, order)
        await connection.execute(update(dashboard_users).where(dashboard_users.c.name == name).values(role=role))
        await write_down(connection, order, "user.changed", name, {"role": [before, role]})
    return before


async def end_sessions(engine: AsyncEngine, name: str, order: Order) -> int:
    """Sign a user out everywhere and return the number of sessions ended. Raises `UnknownSubjectError`."""
    async with writing_first(engine).begin() as connection:
        await _role(connection, name)
        ended = await connection.execute(delete(dashboard_sessions).where(dashboard_sessions.c.user_name == name))
        await write_down(connection, order, "user.signed_out", name, {"sessions": [ended.rowcount, 0]})
    return ended.rowcount


async def remove_user(engine: AsyncEngine, name: str, order: Order) -> None:
    """Remove a user and end its sessions. Raises `UnknownSubjectError`, and `TenancyError` for oneself."""
    async with writing_first(engine).begin() as connection:
        role = await _role(connection, name, order)
        await connection.execute(delete(dashboard_users).where(dashboard_users.c.name == name))
        await write_down(connection, order, "user.removed", name, {"role": [role, None]})


async def kept_password(engine: AsyncEngine, name: str) -> str | None:
    """Return what is stored for the password of a user; None for an unknown name."""
    async with engine.connect() as connection:
        kept: str | None = await connection.scalar(
            select(dashboard_users.c.password).where(dashboard_users.c.name == name)
        )
    return kept


async def password_is_right(engine: AsyncEngine, name: str, password: str, *, is_urgent: bool = False) -> bool:
    """Return whether the password belongs to this user; takes as long for an unknown name.

    A hash made with other parameters than today's is replaced once the password has proved right. Raises
    `TooManyPasswordsError` unless it `is_urgent`.
    """
    users = dashboard_users.c
    kept = await kept_password(engine, name)
    right = await in_turn(matches, password, kept, is_urgent=is_urgent)
    if right and kept is not None and _ARGON2.check_needs_rehash(kept):
        fresh = await in_turn(hashed, password, is_urgent=True)
        async with engine.begin() as connection:
            unchanged = (users.name == name) & (users.password == kept)
            await connection.execute(update(dashboard_users).where(unchanged).values(password=fresh))
    return right


async def _role(connection: AsyncConnection, name: str, order: Order | None = None) -> Role:
    """Return the role of a user. Raises `TenancyError` if the user gave the order itself."""
    # Write first: SQLite then waits for another writer instead of failing, and PostgreSQL locks the row.
    mine = update(dashboard_users).where(dashboard_users.c.name == name).values(role=dashboard_users.c.role)
    role: Role | None = await connection.scalar(mine.returning(dashboard_users.c.role))
    if role is None:
        raise UnknownSubjectError(f"there is no user {name[:128]!r}", "name")
    if order is not None and order.actor == f"user:{name}":
        raise TenancyError("another admin has to do that to you", "name")
    return role
