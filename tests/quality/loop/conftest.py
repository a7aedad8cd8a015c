"""Fixtures of the quality loop: a migrated SQLite file, and fixed inputs for the monitor."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.database import migrate, open_database


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'aio.sqlite3'}"


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    await migrate(database_url)
    engine = open_database(database_url)
    yield engine
    await engine.dispose()
