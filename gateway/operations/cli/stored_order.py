"""Runs a command on the database: opens it if it has the schema of this version, and closes it afterwards."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.base.settings import Settings

Result = TypeVar("Result")


def with_database(settings: "Settings", order: "Callable[[AsyncEngine], Awaitable[Result]]") -> Result:
    """Return the result of `order`. Makes a data folder and a schema where there is none; upgrades no schema, because
    an earlier server may run on it.

    Raises:
        SchemaError: the schema is that of another version.
        DatabaseAwayError: the database does not answer.
    """
    from gateway.base.stores.data_folder import private_data_folder
    from quality.store.database import database_needed, open_database, require_schema

    async def carry_out() -> Result:
        private_data_folder(settings.data_path)
        await require_schema(settings.database)
        engine = open_database(settings.database)
        try:
            return await order(engine)
        finally:
            await engine.dispose()

    with database_needed(settings.database):
        return asyncio.run(carry_out())
