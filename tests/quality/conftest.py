"""Migrated databases for the tests of the quality loop and of the store."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.store.database import migrate, open_database


@pytest.fixture
async def sqlite_engine(sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    await migrate(sqlite_url)
    engine = open_database(sqlite_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def any_engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Once on SQLite and once on PostgreSQL, where its binaries are installed."""
    await migrate(database_url)
    engine = open_database(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def engine(sqlite_engine: AsyncEngine) -> AsyncEngine:
    """The usual database of these tests is SQLite."""
    return sqlite_engine
