"""Fixtures for the tests of this folder."""

import pytest

from gateway.operations.setup import found_tiers


@pytest.fixture(autouse=True)
def servers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of the tests is found on a busy machine too, where it may not answer within half a second."""
    monkeypatch.setattr(found_tiers, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(found_tiers, "DETAIL_SECONDS", 60.0)
