"""Collected before the tests of a group: starts what all of them share, in the process whose forks they run in."""

import asyncio
import sys
from pathlib import Path

import pytest


def test_what_forks_share_is_started(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    names = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    urls = [f"sqlite:///{tmp_path / 'store.db'}"] if "quality.store.database" in sys.modules else []
    if names & {"postgres_server", "postgres_url", "database_url"}:
        urls.append(request.getfixturevalue("postgres_server").emptied_database())
    for url in urls:
        # The first migration makes the schema that tests/schema_copies.py copies afterwards.
        asyncio.run(sys.modules["quality.store.database"].migrate(url))
