"""Whether the database has keys, read without changing it, also where nothing was ever started."""

from pathlib import Path

from sqlalchemy import String, cast, inspect, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from migrations.tables.tenancy import api_keys
from quality.store.database import database_opened


async def has_answer_keys(settings: Settings) -> bool | None:
    """Return whether there is a key with the scope `inference`, ended ones included; None if the database cannot be
    read. Raises `DatabaseUrlError` for an unusable URL."""
    query = select(api_keys.c.key_id).where(cast(api_keys.c.scopes, String).contains('"inference"')).limit(1)
    try:
        async with database_opened(settings.database) as engine:
            if not await has_stored_keys(settings.database, engine):
                return False
            async with engine.connect() as connection:
                return (await connection.execute(query)).first() is not None
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
