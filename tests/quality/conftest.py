"""Migrated databases for the tests of the quality loop and of the store, and a registry with a tiny classifier."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.registry.registry import ArtefactRegistry
from quality.store.database import migrate, open_database
from tests.quality.retraining.tiny_classifier import base_artefact, fresh_registry


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


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_artefact(tmp_path_factory.mktemp("shipped"))


@pytest.fixture
def registry(shipped: Path, tmp_path: Path) -> ArtefactRegistry:
    return fresh_registry(tmp_path / "registry", shipped)
