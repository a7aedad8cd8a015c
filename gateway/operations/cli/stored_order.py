"""Runs a command on the database: opens it with its schema up to date, and closes it afterwards."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.base.settings import Settings

Result = TypeVar("Result")


def with_database(settings: "Settings", order: "Callable[[AsyncEngine], Awaitable[Result]]") -> Result:
    """Return the result of `order`. Creates the data folder if it is missing."""
    from gateway.base.stores.data_folder import private_data_folder
    from quality.store.database import migrate, open_database

    async def carry_out() -> Result:
        private_data_folder(settings.data_path)
        await migrate(settings.database)
        engine = open_database(settings.database)
        try:
            return await order(engine)
        finally:
            await engine.dispose()

    return asyncio.run(carry_out())
