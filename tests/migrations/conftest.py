"""Tests of the migrations run them, every time."""

import pytest

from quality.store import database
from tests.schema_copies import run_revisions


@pytest.fixture(autouse=True)
def _revisions_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_run_alembic", run_revisions)
