"""The table of losses: nothing is lost without a name, and the page shows what the gateway does."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.gateway.fidelity.losses import CLIENTS, KINDS, SERVERS, body_of, page, table

PAGE = Path(__file__).parents[3] / "docs" / "results" / "losses.md"


@pytest.mark.processes
def test_nothing_is_lost_without_a_name_and_the_page_shows_it() -> None:
    cells = asyncio.run(table())
    assert len(cells) == len(KINDS) * len(CLIENTS) * len(SERVERS)
    assert [cell for cell in cells if cell.outcome == "lost"] == []
    assert page(cells).strip() in PAGE.read_text("utf-8")


def test_every_kind_is_sent_by_some_client_with_its_mark() -> None:
    for kind in KINDS:
        bodies = [body for client in CLIENTS if (body := body_of(kind, client)) is not None]
        assert bodies, kind.name
        assert all(kind.is_shown or kind.mark.lower() in str(body).lower() for body in bodies), kind.name
