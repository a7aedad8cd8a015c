"""A database that is away for seconds is one line of the log, and another when it is back."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.processes.test_dependency_faults import ask, metric, outage
from tests.polling import until
from tests.support.served import served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

# Verification from the first request on: its loops ask the database every second.
LOOPS = {"AIO_COLD_START_USD": "10"}
# Every loop fails in that time, and some several times.
OUTAGE_SECONDS = 6.0
NOTICED = "is away ("
MISCOUNTED = "which cannot be"
BACK = "the database is back after "


@pytest.fixture
def options(upstream: Upstream, tmp_path: Path, postgres_url: str) -> list[str]:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    return ["--catalog", str(catalog), "--database-url", postgres_url]


def said(folder: Path) -> list[str]:
    """The log's lines of warnings and errors, with their stacks, and the ends of outages. The upstream ignores
    judges' limits of tokens, which is a warning of its own."""
    lines = (folder / "data" / "log").read_text().splitlines()
    return [line for line in lines if (" INFO " not in line or BACK in line) and MISCOUNTED not in line]


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
def test_postgresql_away_for_seconds_is_a_warning_and_its_end_a_line(
    options: list[str], tmp_path: Path, postgres_server: Any, hangs: bool
) -> None:
    with served(tmp_path / "data", tmp_path / "cache", *options, environment=LOOPS) as aio:
        ask(aio)
        until(lambda: metric(aio, "aio_ledger_lag_records") == 0)
        before = len(said(tmp_path))
        with postgres_server.suspended() if hangs else outage(postgres_server):
            until(lambda: NOTICED in "".join(said(tmp_path)[before:]))
            ask(aio)
            end = time.monotonic() + OUTAGE_SECONDS
            until(lambda: time.monotonic() > end)
        until(lambda: BACK in "".join(said(tmp_path)[before:]))
        until(lambda: metric(aio, "aio_ledger_lag_records") == 0)
        lines = said(tmp_path)[before:]
    assert [NOTICED in line or BACK in line for line in lines] == [True, True], "\n".join(lines)
    assert " WARNING " in lines[0]
    assert "records wait in the journal" in lines[0]


def test_a_start_without_postgresql_says_so_once(options: list[str], tmp_path: Path, postgres_server: Any) -> None:
    with outage(postgres_server) as back, served(tmp_path / "data", tmp_path / "cache", *options) as aio:
        ask(aio)
        back()
        until(lambda: BACK in "".join(said(tmp_path)))
        until(lambda: metric(aio, "aio_ledger_lag_records") == 0)
        lines = [line for line in said(tmp_path) if "database" in line]
    assert [NOTICED in line or BACK in line for line in lines] == [True, True], "\n".join(lines)
