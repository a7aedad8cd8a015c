"""SIGUSR2 under load: clients that keep their connections lose no request while every worker is replaced."""

import http.client
import json
import signal
import threading
from pathlib import Path

import pytest

from tests.gateway.processes.test_workers import workers
from tests.polling import until
from tests.support.served import UNCACHED, ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

CLIENTS = 8
BODY = json.dumps({"model": "tier-1", "messages": [{"role": "user", "content": "Hello there"}]})


class Caller(threading.Thread):
    """Sends one request after another on one connection, and opens another only after an answer that says so."""

    def __init__(self, aio: ServedProcess, done: threading.Event) -> None:
        super().__init__()
        self.answered, self.connections = 0, 0
        self.lost: list[str] = []
        self._address, self._done = aio.url.removeprefix("http://"), done
        self.start()

    def run(self) -> None:
        while not self._done.is_set():
            connection = http.client.HTTPConnection(self._address, timeout=60)
            self.connections += 1
            try:
                self._use(connection)
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
            finally:
                connection.close()

    def _use(self, connection: http.client.HTTPConnection) -> None:
        said_close = False
        while not said_close and not self._done.is_set():
            connection.request("POST", "/v1/chat/completions", BODY, {"content-type": "application/json", **UNCACHED})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            self.answered += 1
            said_close = answer.getheader("connection") == "close"


@pytest.mark.parametrize(
    ("renewals", "requests"), [(2, 1_000), pytest.param(4, 10_000, marks=pytest.mark.slow)], ids=["2", "4"]
)
def test_renewals_of_all_workers_lose_no_request_on_kept_connections(
    renewals: int, requests: int, upstream: Upstream, tmp_path: Path
) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    options = ("--gateway-workers", "2", "--catalog", str(catalog))
    with served(tmp_path / "data", tmp_path / "cache", *options) as aio:
        done = threading.Event()
        callers = [Caller(aio, done) for _ in range(CLIENTS)]
        try:
            for renewal in range(1, renewals + 1):
                before = workers(aio)
                aio.process.send_signal(signal.SIGUSR2)
                until(lambda: len(workers(aio)) == 2 and not workers(aio) & before)  # noqa: B023
                until(lambda: sum(one.answered for one in callers) >= requests * renewal / renewals)  # noqa: B023
        finally:
            done.set()
            for one in callers:
                one.join()
    assert [error for one in callers for error in one.lost] == []
    # The workers that ended had closed their connections.
    assert sum(one.connections for one in callers) > CLIENTS
