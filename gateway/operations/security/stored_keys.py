"""What the database says about keys, read without changing it, also where nothing was ever started."""

from pathlib import Path

import msgspec
from sqlalchemy import String, cast, inspect, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.settings import Settings
from migrations.tables.tenancy import api_keys
from quality.store.database import database_opened


class AdminKey(msgspec.Struct, frozen=True):
    """A stored key with the scope `admin`, not revoked; `made`, its last rotation, and `expires` in epoch seconds."""

    name: str
    made: float
    expires: float | None


class StoredKeys(msgspec.Struct, frozen=True):
    """`for_answers`: whether there is a key with the scope `inference`, ended ones included."""

    for_answers: bool
    admins: tuple[AdminKey, ...]


async def stored_keys(settings: Settings) -> StoredKeys | None:
    """Return what the database has; None if it cannot be read. Raises `DatabaseUrlError` for an unusable URL."""
    try:
        async with database_opened(settings.database) as engine:
            if not await has_stored_keys(settings.database, engine):
                return StoredKeys(False, ())
            async with engine.connect() as connection:
                return await _read(connection)
    except (SQLAlchemyError, OSError):
        return None


def is_missing_file(database: str) -> bool:
    """Return whether it is a file of SQLite that is not there; opening it would make it."""
    url = make_url(database)
    return url.get_backend_name() == "sqlite" and not Path(url.database or "").exists()


async def has_stored_keys(database: str, engine: AsyncEngine) -> bool:
    """Return whether `engine`'s database is there and was ever migrated. Raises `SQLAlchemyError` and `OSError`."""
    if is_missing_file(database):
        return False
    async with engine.connect() as connection:
        return await connection.run_sync(lambda plain: inspect(plain).has_table(api_keys.name))


async def _read(connection: AsyncConnection) -> StoredKeys:
    columns, scopes = api_keys.c, cast(api_keys.c.scopes, String)
    for_answers = await connection.execute(select(columns.key_id).where(scopes.contains('"inference"')).limit(1))
    admins = await connection.execute(
        select(columns.name, columns.created_at, columns.rotated_at, columns.expires_at)
        .where(scopes.contains('"admin"'), columns.revoked_at.is_(None))
        .order_by(columns.name)
        .limit(1000)
    )
    return StoredKeys(
        for_answers.first() is not None,
        tuple(AdminKey(name, rotated or created, expires) for name, created, rotated, expires in admins),
    )
