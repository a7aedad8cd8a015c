"""A disk that does not answer: answers go on, what is not durable is said, and what finds no room is refused."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from quality.ledger.ledger import Ledger
from tests.polling import eventually
from tests.support.administrator import ADMIN_HEADERS
from tests.support.app import RunningGateway, StartApp

BODY = {"model": "tier-2", "messages": [{"role": "user", "content": "Hello there"}]}


@pytest_asyncio.fixture
async def gateway(app: StartApp) -> RunningGateway:
    return await app()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The disk of the journal answers once the event is set. A record is suspect as soon as it waits."""
    answers = threading.Event()
    monkeypatch.setattr("quality.ledger.journal.os.fdatasync", lambda _: answers.wait(60))
    monkeypatch.setattr("quality.ledger.ledger._PATIENCE_S", 0.0)
    yield answers
    answers.set()


def ledger_of(gateway: RunningGateway) -> Ledger:
    return gateway.operations.readiness.ledger


async def lag(gateway: RunningGateway) -> float:
    families = text_string_to_metric_families((await gateway.http.get("/metrics")).text)
    [sample] = next(family for family in families if family.name == "aio_journal_lag_seconds").samples
    return sample.value


async def health(gateway: RunningGateway) -> tuple[int, dict[str, Any]]:
    answer = await gateway.http.get("/health/ready")
    return answer.status_code, answer.json()


async def chat(gateway: RunningGateway, **more: Any) -> Any:
    return await gateway.http.post("/v1/chat/completions", json=BODY | more)


async def test_answers_go_on_while_the_disk_stalls_and_their_records_are_found_afterwards(
    gateway: RunningGateway, disk: threading.Event
) -> None:
    assert await lag(gateway) == 0
    whole, streamed = await chat(gateway), await chat(gateway, stream=True)
    assert (whole.status_code, streamed.status_code) == (200, 200)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert await lag(gateway) > 0
    status, ready = await health(gateway)
    assert (status, ready["status"]) == (200, "degraded")
    assert "durability is suspended" in ready["problems"]["journal"]
    system = (await gateway.http.get("/admin/api/system", headers=ADMIN_HEADERS)).json()
    assert "durability is suspended" in system["problems"]["journal"]

    disk.set()
    for answer in (whole, streamed):
        record = f"/v1/requests/{answer.headers['x-aio-decision-id']}"
        await eventually(lambda record=record: _found(gateway, record))
    assert await lag(gateway) == 0
    assert await health(gateway) == (200, {"status": "ok"})


async def _found(gateway: RunningGateway, path: str) -> bool:
    return (await gateway.http.get(path)).status_code == 200


async def test_beyond_the_bound_new_requests_are_refused_and_answers_under_way_end_and_are_recorded(
    gateway: RunningGateway, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, before = ledger_of(gateway), [await chat(gateway) for _ in range(3)]
    async with gateway.http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as under_way:
        monkeypatch.setattr(ledger, "_max_pending_bytes", 2 * ledger.status().pending_bytes - 1)
        for path, body in (("chat/completions", BODY), ("completions", {"model": "tier-2", "prompt": "Hello"})):
            refused = await gateway.http.post(f"/v1/{path}", json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            error = refused.json()["error"]
            assert (error["type"], error["param"], error["code"]) == ("server_error", None, "journal_full")
        status, ready = await health(gateway)
        assert (status, ready["status"]) == (503, "not ready")
        assert ready["problems"]["journal"].endswith("new requests are refused")
        assert (await under_way.aread()).endswith(b"data: [DONE]\n\n")
    assert ledger.status().refused == 0

    disk.set()
    await eventually(lambda: not ledger.is_full())
    assert (await chat(gateway)).status_code == 200
    for answer in (*before, under_way):
        assert await eventually(lambda: ledger.find(answer.headers["x-aio-decision-id"]))  # noqa: B023
