"""The quality loop's usual database is SQLite."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine


@pytest.fixture
def engine(sqlite_engine: AsyncEngine) -> AsyncEngine:
    return sqlite_engine
