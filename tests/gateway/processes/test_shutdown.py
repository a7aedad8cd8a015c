"""SIGTERM as an orchestrator sends it: no answer and no record is lost."""

import signal
import sqlite3
import threading
from pathlib import Path

import httpx
import openai
import pytest

from tests.polling import until
from tests.support.served import ENDED_SECONDS, Serve, ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

HOLD = [{"role": "user", "content": "hold the line"}]


@pytest.fixture(params=[1, 2], ids=["one process", "two workers"])
def options(request: pytest.FixtureRequest, own_upstream: Upstream, tmp_path: Path) -> list[str]:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", own_upstream.base_url)
    return ["--gateway-workers", str(request.param), "--catalog", str(catalog)]


def refused(aio: ServedProcess) -> bool:
    try:
        httpx.get(f"{aio.url}/health/live", timeout=1)
    except httpx.ConnectError:
        return True
    except httpx.HTTPError:
        return False
    return False


class Reader(threading.Thread):
    """Reads a stream that pauses after its first word."""

    def __init__(self, aio: ServedProcess) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.request_id = ""
        self.error: Exception | None = None
        self._client = aio.client
        self.start()

    def run(self) -> None:
        try:
            stream = self._client.chat.completions.create(model="tier-1", messages=HOLD, stream=True)  # type: ignore[call-overload]
            for chunk in stream:
                self.request_id = chunk.id
                self.pieces += [choice.delta.content or "" for choice in chunk.choices]
        except (openai.APIError, httpx.HTTPError) as error:
            self.error = error


def held(aio: ServedProcess, own_upstream: Upstream) -> Reader:
    reader = Reader(aio)
    assert own_upstream.held.acquire(timeout=120)
    until(lambda: reader.request_id)
    return reader


def stored(data: Path) -> dict[str, str]:
    """Requests in the database, and how they ended."""
    with sqlite3.connect(data / "aio.sqlite3") as database:
        return dict(database.execute("SELECT request_id, status FROM requests").fetchall())


def test_streams_end_and_their_records_are_stored_and_the_status_is_0(
    options: list[str], own_upstream: Upstream, tmp_path: Path
) -> None:
    with served(tmp_path / "data", tmp_path / "cache", *options) as aio:
        readers = [held(aio, own_upstream) for _ in range(4)]
        aio.process.send_signal(signal.SIGTERM)
        until(lambda: refused(aio))
        own_upstream.let_go()
        for reader in readers:
            reader.join()
        assert aio.process.wait(ENDED_SECONDS) == 0
    assert ["".join(reader.pieces) for reader in readers] == ["hold the line"] * 4
    assert stored(tmp_path / "data") == {reader.request_id: "ok" for reader in readers}


def test_what_does_not_end_in_time_ends_with_an_error_and_its_record_says_so(
    options: list[str], own_upstream: Upstream, tmp_path: Path
) -> None:
    environment = {"AIO_DRAIN_SECONDS": "1"}
    with served(tmp_path / "data", tmp_path / "cache", *options, environment=environment) as aio:
        reader = held(aio, own_upstream)
        aio.process.send_signal(signal.SIGTERM)
        reader.join()
        assert aio.process.wait(ENDED_SECONDS) == 0
    assert reader.error is not None
    assert stored(tmp_path / "data") == {reader.request_id: "aborted"}


def test_a_second_signal_ends_the_server_at_once(options: list[str], own_upstream: Upstream, tmp_path: Path) -> None:
    environment = {"AIO_DRAIN_SECONDS": "3000"}
    with served(tmp_path / "data", tmp_path / "cache", *options, environment=environment) as aio:
        reader = held(aio, own_upstream)
        aio.process.send_signal(signal.SIGTERM)
        until(lambda: refused(aio))
        aio.process.send_signal(signal.SIGTERM)
        assert aio.process.wait(ENDED_SECONDS) == 1
        reader.join()
    assert reader.error is not None


def test_balancers_may_notice_first(options: list[str], own_upstream: Upstream, served: Serve) -> None:
    aio = served(*options, environment={"AIO_UNREADY_SECONDS": "3000"})
    assert httpx.get(f"{aio.url}/health/ready").status_code == 200
    aio.process.send_signal(signal.SIGTERM)
    # Workers receive the signal separately: one that is no longer ready says why.
    until(lambda: "shutdown" in httpx.get(f"{aio.url}/health/ready").json().get("problems", {}))
    answer = aio.client.chat.completions.create(model="tier-1", messages=[{"role": "user", "content": "Still?"}])
    assert answer.choices[0].message.content == "Still?"
    aio.process.send_signal(signal.SIGTERM)
    assert aio.process.wait(ENDED_SECONDS) == 1
