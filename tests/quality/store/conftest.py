"""The store is tested on every kind of database."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine


@pytest.fixture
def engine(any_engine: AsyncEngine) -> AsyncEngine:
    return any_engine
