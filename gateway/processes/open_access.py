"""A gateway that other machines reach starts only if callers need a key, or if the operator says that they do not."""

import asyncio
from pathlib import Path

from sqlalchemy import String, cast, inspect, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.settings import Settings, SettingsError
from gateway.tenancy.host_names import is_reachable_from_elsewhere
from migrations.tables import api_keys
from quality.store.database import open_database


def refuse_open_access(settings: Settings) -> None:
    """Raise `SettingsError` where strangers could use the gateway: it listens beyond this machine, and there is no key
    for answers, neither in the settings nor in the database.

    Nothing is changed. A database that cannot be read refuses nothing: until it is read, and if it then has no keys,
    every caller needs one (`Directory.asks_for_keys`). Admin keys do not count, because answers do not need them.
    """
    if settings.insecure or settings.api_keys or not is_reachable_from_elsewhere(settings.host):
        return
    if asyncio.run(has_inference_keys(settings)) is False:
        raise SettingsError(
            f"AIO_HOST={settings.host} is reached by other machines, and no API key exists, so anyone could use this "
            "gateway: make a key (`aio keys create NAME`, or `aio new-key` for AIO_API_KEYS), or allow callers without "
            "one by --insecure (AIO_INSECURE=true)"
        )


async def has_inference_keys(settings: Settings) -> bool | None:
    """Return whether the database has a key for answers, ended ones included; None if it cannot be read."""
    if _is_missing_file(settings.database):
        return False
    engine = open_database(settings.database)
    try:
        async with engine.connect() as connection:
            return await _has_inference_keys(connection)
    except (SQLAlchemyError, OSError):
        return None
    finally:
        await engine.dispose()


def _is_missing_file(database: str) -> bool:
    url = make_url(database)
    return url.get_backend_name() == "sqlite" and not Path(url.database or "").exists()


async def _has_inference_keys(connection: AsyncConnection) -> bool:
    # A database that was never migrated.
    if not await connection.run_sync(lambda plain: inspect(plain).has_table(api_keys.name)):
        return False
    found = select(api_keys.c.key_id).where(cast(api_keys.c.scopes, String).contains('"inference"')).limit(1)
    return (await connection.execute(found)).first() is not None
