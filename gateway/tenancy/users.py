"""Users of the dashboard: a name, a role, and a password of which only scrypt's hash is kept."""

import asyncio
import base64
import hashlib
import hmac
import os
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.tenancy.errors import TenancyError, UnknownSubjectError
from gateway.tenancy.orders import Order, write_down
from migrations.tables import dashboard_sessions, dashboard_users
from quality.store.pages import Listing

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
SCOPES_OF: dict[str, frozenset[str]] = {
    "viewer": frozenset({"viewer"}),
    "operator": frozenset({"viewer", "operator"}),
    "admin": frozenset({"viewer", "operator", "admin"}),
}
"""A viewer looks, an operator changes knobs and reviews too, an admin changes keys, budgets and users as well."""

UserName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}\Z")]
Password = Annotated[str, Meta(min_length=12, max_length=1024)]
USERS = Listing(dashboard_users, "name", (), hidden=("password",))

# 16 MiB and some 50 ms of one CPU.
_N, _R, _P, _LENGTH = 2**14, 8, 1, 32


class UserOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new user of the dashboard; the password has 12 characters at least."""

    name: UserName
    password: Password
    role: Role = "viewer"


class RoleOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user may do from now on."""

    role: Role


async def add_user(engine: AsyncEngine, user: UserOrder, order: Order) -> None:
    """Raises `TenancyError` if the name is taken."""
    row = {"name": user.name, "role": user.role, "password": await asyncio.to_thread(hashed, user.password)}
    try:
        async with engine.begin() as connection:
            await connection.execute(insert(dashboard_users).values(created_at=order.now, **row))
            await write_down(connection, order, "user.added", user.name, {"role": [None, user.role]})
    except IntegrityError as error:
        raise TenancyError(f"there is a user {user.name!r} already", "name") from error


async def change_role(engine: AsyncEngine, name: str, role: Role, order: Order) -> Role:
    """In force within two seconds where the user is signed in. Returns the role before. Raises `UnknownSubjectError`,
    and `TenancyError` for somebody's own role: no admin locks the admission_control from outside."""
    async with engine.begin() as connection:
        before = await _role(connection, name, order)
        await connection.execute(update(dashboard_users).where(dashboard_users.c.name == name).values(role=role))
        await write_down(connection, order, "user.changed", name, {"role": [before, role]})
    return before


async def end_sessions(engine: AsyncEngine, name: str, order: Order) -> int:
    """Sign a user out everywhere; how many sessions that were. Raises `UnknownSubjectError`."""
    async with engine.begin() as connection:
        await _role(connection, name)
        ended = await connection.execute(delete(dashboard_sessions).where(dashboard_sessions.c.user_name == name))
        await write_down(connection, order, "user.signed_out", name, {"sessions": [ended.rowcount, 0]})
    return ended.rowcount


async def remove_user(engine: AsyncEngine, name: str, order: Order) -> None:
    """Ends the user's sessions too. Raises `UnknownSubjectError`, and `TenancyError` for oneself."""
    async with engine.begin() as connection:
        role = await _role(connection, name, order)
        await connection.execute(delete(dashboard_users).where(dashboard_users.c.name == name))
        await write_down(connection, order, "user.removed", name, {"role": [role, None]})


async def has_users(engine: AsyncEngine) -> bool:
    """Whether anybody can sign in by name."""
    async with engine.connect() as connection:
        return await connection.scalar(select(dashboard_users.c.name).limit(1)) is not None


async def password_is_right(engine: AsyncEngine, name: str, password: str) -> bool:
    """Whether there is such a user with this password; as slow for a name that is not known."""
    async with engine.connect() as connection:
        query = select(dashboard_users.c.password).where(dashboard_users.c.name == name)
        kept: Any = await connection.scalar(query)
    right = await asyncio.to_thread(_matches, password, kept or _NOBODY)
    return right and kept is not None


def hashed(password: str, salt: bytes | None = None) -> str:
    """`scrypt:N:r:p:salt:hash`, so that stronger parameters may follow."""
    salt = os.urandom(16) if salt is None else salt
    digest = _scrypt(password, salt, _N, _R, _P)
    return f"scrypt:{_N}:{_R}:{_P}:{_text(salt)}:{_text(digest)}"


async def _role(connection: AsyncConnection, name: str, order: Order | None = None) -> Role:
    """That a user has, who must not be the one who gives the order."""
    # A write comes first, so that SQLite waits for another writer instead of failing, and PostgreSQL holds the row.
    mine = update(dashboard_users).where(dashboard_users.c.name == name).values(role=dashboard_users.c.role)
    role: Role | None = await connection.scalar(mine.returning(dashboard_users.c.role))
    if role is None:
        raise UnknownSubjectError(f"there is no user {name[:128]!r}", "name")
    if order is not None and order.actor == f"user:{name}":
        raise TenancyError("another admin has to do that to you", "name")
    return role


def _matches(password: str, kept: str) -> bool:
    _, n, r, p, salt, digest = kept.split(":")
    wanted = base64.b64decode(digest)
    return hmac.compare_digest(_scrypt(password, base64.b64decode(salt), int(n), int(r), int(p)), wanted)


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=_LENGTH)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


_NOBODY = f"scrypt:{_N}:{_R}:{_P}:{_text(bytes(16))}:{_text(bytes(_LENGTH))}"
