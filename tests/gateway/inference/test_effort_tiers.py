"""One model at several reasoning efforts is several tiers: the caller's own word comes first, and caches are shared."""

from pathlib import Path
from typing import Any

import pytest

from gateway.inference.agent_session import CachedPrefix, Session
from tests.gateway.chats import chat
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog

EFFORTS = """
[[tiers]]
name = "quick"
url = "http://127.0.0.1:9/v1"
model = "thinker"
effort = "low"

[[tiers]]
name = "long"
url = "http://127.0.0.1:9/v1"
model = "thinker"
effort = "high"

[[tiers]]
name = "other"
url = "http://127.0.0.1:10/v1"
model = "thinker"
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    file = tmp_path / "aio.toml"
    file.write_text(EFFORTS)
    return load_catalog(str(file))


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, ["low", "high", None]),
        ({"reasoning_effort": "minimal"}, ["minimal"] * 3),
        ({"reasoning_budget": 0}, [None] * 3),
    ],
)
def test_a_tiers_effort_is_sent_where_the_caller_says_nothing_of_thinking(
    catalog: Catalog, asked: dict[str, Any], sent: list[str | None]
) -> None:
    request = chat("Hello?").with_generation(**asked)
    assert [request.generations(spec)[0].reasoning_effort for spec in catalog.tiers] == sent


def test_tiers_that_differ_by_their_effort_share_a_cache(catalog: Catalog) -> None:
    session = Session(id=b"s", at=100.0, caches=(CachedPrefix(1, 5000, 100.0),))
    assert [one.tokens for one in session.warmth(catalog, 110.0)] == [5000, 5000, 0]
