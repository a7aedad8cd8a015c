"""A gateway whose database or disk fails keeps serving, and its records are complete in the end."""

import asyncio
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from migrations.tables.requests import requests
from quality.store.database import open_database
from tests.polling import until
from tests.support.served import Serve, ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

CHAT = "/v1/chat/completions"


@pytest.fixture
def options(upstream: Upstream, tmp_path: Path, postgres_url: str) -> list[str]:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    return ["--catalog", str(catalog), "--database-url", postgres_url]


def ask(aio: ServedProcess) -> str:
    """Return the id of a request that was answered completely."""
    answer = aio.ask()
    assert answer.status_code == 200, answer.text
    return answer.headers["x-aio-decision-id"]


def metric(aio: ServedProcess, name: str) -> float:
    lines = httpx.get(f"{aio.url}/metrics", timeout=120).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@contextmanager
def outage(server: Any) -> Iterator[Callable[[], None]]:
    """Kill the server; it is back when the block ends, or when the yielded function is called."""
    down = True

    def back() -> None:
        nonlocal down
        if down:
            server.start()
        down = False

    server.stop()
    try:
        yield back
    finally:
        back()


def stored(url: str) -> set[str]:
    async def read() -> set[str]:
        engine = open_database(url)
        async with engine.connect() as connection:
            # In one query: rows may arrive while it runs.
            found = list((await connection.execute(select(requests.c.request_id))).scalars())
        await engine.dispose()
        assert len(found) == len(set(found))
        return set(found)

    return asyncio.run(read())


def problems(aio: ServedProcess) -> dict[str, str]:
    found: dict[str, str] = httpx.get(f"{aio.url}/health/ready").json().get("problems", {})
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
def test_postgresql_killed_and_back_costs_no_request_and_no_record(
    options: list[str], tmp_path: Path, postgres_server: Any, postgres_url: str, workers: str, served: Serve
) -> None:
    aio = served(*options, "--gateway-workers", workers)
    ids = [ask(aio) for _ in range(4)]
    until(lambda: metric(aio, "aio_ledger_lag_records") == 0)
    with outage(postgres_server):
        away = [ask(aio) for _ in range(8)]
        # By any process: records not yet stored are fetched from the others.
        for request_id in away:
            until(lambda: httpx.get(f"{aio.url}/v1/requests/{request_id}").status_code == 200)  # noqa: B023
            assert {httpx.get(f"{aio.url}/v1/requests/{request_id}").status_code for _ in range(6)} == {200}
        unknown = httpx.get(f"{aio.url}/v1/requests/{ids[0]}")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "database_unavailable")
        until(lambda: "database" in problems(aio))
    until(lambda: "database" not in problems(aio))
    # A refusal has no line of its own: the outage has one.
    assert " ERROR " not in (tmp_path / "data" / "log").read_text()
    ids += [*away, ask(aio)]
    until(lambda: metric(aio, "aio_ledger_lag_records") == 0)
    assert stored(postgres_url) == set(ids)


def test_a_gateway_starts_without_its_database_and_finds_it_later(
    options: list[str], tmp_path: Path, postgres_server: Any, postgres_url: str
) -> None:
    with outage(postgres_server) as back, served(tmp_path / "data", tmp_path / "cache", *options) as aio:
        ids = {ask(aio) for _ in range(3)}
        back()
        until(lambda: metric(aio, "aio_ledger_lag_records") == 0)
        assert stored(postgres_url) == ids


def test_a_full_disk_stops_no_request_and_loses_no_record_once_there_is_room(
    options: list[str], tmp_path: Path, postgres_url: str
) -> None:
    with served(tmp_path / "data", tmp_path / "cache", *options) as aio:
        ids = [ask(aio) for _ in range(3)]
        until(lambda: set(ids) <= stored(postgres_url))
        # No file of the process may grow: its writes fail, as on a full disk.
        _, hard = resource.prlimit(aio.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        ids += [ask(aio) for _ in range(5)]
        assert httpx.get(f"{aio.url}/health/live").status_code == 200
        # What could not be journaled never reaches a database.
        until(lambda: metric(aio, "aio_ledger_lag_records") == 5)
        assert stored(postgres_url) == set(ids[:3])
        resource.prlimit(aio.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
        until(lambda: set(ids) <= stored(postgres_url))
        aio.process.send_signal(signal.SIGTERM)
        assert aio.process.wait() == 0
    assert stored(postgres_url) == set(ids)
