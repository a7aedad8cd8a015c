"""Streams that a SIGKILL cuts are recorded and charged by the next process, because their provider bills them."""

import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.polling import until
from tests.support.administrator import bearer
from tests.support.served import served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

KEY = "test-ada-b93e7f1c58d240a6b1f03c7d9e8a4512"
STREAMS = 8
BUDGET = {"kind": "key", "subject": "ada", "period": "total", "amount_usd": 1.0}
LIMIT = 512


def read_until_cut(url: str, words: str, begun: threading.Semaphore, ids: list[str]) -> None:
    """Ask for a stream, note its id with the first event, and read until the gateway dies."""
    body = {"model": "tier-1", "messages": [{"role": "user", "content": words}], "max_tokens": LIMIT, "stream": True}
    with (
        suppress(httpx.HTTPError),
        httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=bearer(KEY), timeout=120) as answer,
    ):
        ids.append(answer.headers["x-aio-decision-id"])
        begun.release()
        for _ in answer.iter_raw():
            pass


def test_streams_that_a_kill_cuts_have_a_record_each_and_are_charged_what_was_held(
    tmp_path: Path, own_upstream: Upstream, weight_cache: Path
) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", own_upstream.base_url)
    options = ["--catalog", str(catalog)]
    environment = {"AIO_API_KEYS": f"ada={KEY}"}
    ids: list[str] = []
    begun = threading.Semaphore(0)
    with served(tmp_path / "data", weight_cache, *options, environment=environment) as aio:
        assert aio.admin.put("/admin/api/budgets", json=BUDGET).status_code == 200
        asked = (aio.url, "hold the line", begun, ids)
        readers = [threading.Thread(target=read_until_cut, args=asked) for _ in range(STREAMS)]
        for reader in readers:
            reader.start()
        for _ in readers:
            assert begun.acquire(timeout=120)
            assert own_upstream.held.acquire(timeout=120)
        journals = tmp_path / "data" / "journal"
        until(lambda: all(one.encode() in b"".join(map(Path.read_bytes, journals.rglob("*.journal"))) for one in ids))
        aio.kill()
        for reader in readers:
            reader.join()
    own_upstream.let_go()

    with served(tmp_path / "data", weight_cache, *options, environment=environment) as again:
        shown = [again.admin.get(f"/v1/requests/{one}", headers=bearer(KEY)).json() for one in ids]
        assert {record["status"] for record in shown} == {"error"}
        assert all("interrupted" in record["error"] for record in shown)
        assert all(attempt["estimated"] for record in shown for attempt in record["attempts"])
        # At most LIMIT tokens at $0.30 a million were held for each, and a little for its prompt.
        costs = [record["cost_usd"] for record in shown]
        assert min(costs) >= LIMIT * 0.3e-6
        assert max(costs) <= LIMIT * 0.3e-6 * 1.1
        # By these the budget's book counts what a dead process has spent.
        assert {record["key_id"] for record in shown} == {"ada"}
        assert len({record["replica"] for record in shown}) == 1
